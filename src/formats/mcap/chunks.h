// Compresses and decompresses the records of chunks. The contexts of zstd and lz4 are made once and used again.
#pragma once

#include "formats/mcap/input_file.h"

namespace robocache::mcap {

class Unpacker {
 public:
  Unpacker();
  ~Unpacker();
  Unpacker(const Unpacker&) = delete;
  Unpacker& operator=(const Unpacker&) = delete;

  // The records of a chunk: the chunk's own bytes if they are not compressed, otherwise bytes in `into`. Throws Damage; if the
  // size is impossible, before any memory is allocated.
  Span unpack(const InputFile& source, const Chunk& chunk, ReusedBuffer& into);

 private:
  void unpack_zstd(Span packed, std::span<std::byte> to);
  void unpack_lz4(Span packed, std::span<std::byte> to);
  struct Contexts;
  std::unique_ptr<Contexts> contexts_;
};

// Throws Damage if an attachment does not match its CRC. `body`: of its record.
void check_crc(const InputFile& source, const Attachment& attachment, Span body);

class Packer {
 public:
  Packer(Compression compression, int level);
  ~Packer();
  Packer(const Packer&) = delete;
  Packer& operator=(const Packer&) = delete;

  std::string_view name() const noexcept;  // as a Chunk record says it
  // Valid until the next call.
  Span pack(Span records);

 private:
  struct Context;
  Compression compression_;
  std::unique_ptr<Context> context_;
  ReusedBuffer buffer_;
};

}  // namespace robocache::mcap
