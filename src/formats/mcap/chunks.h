// What a chunk holds, packed and unpacked. The contexts of zstd and lz4 are made once and used again.
#pragma once

#include "formats/mcap/source.h"

namespace robocache::mcap {

class Unpacker {
 public:
  Unpacker();
  ~Unpacker();
  Unpacker(const Unpacker&) = delete;
  Unpacker& operator=(const Unpacker&) = delete;

  // The records of a chunk: its own bytes where they are not compressed, else in `into`. Throws Damage, before memory is
  // taken where the size is impossible.
  Span unpack(const Source& source, const Chunk& chunk, Buffer& into);

 private:
  void unpack_zstd(Span packed, std::span<std::byte> to);
  void unpack_lz4(Span packed, std::span<std::byte> to);
  struct Contexts;
  std::unique_ptr<Contexts> contexts_;
};

// Throws Damage where an attachment does not match its CRC; `body` is its record's.
void check_crc(const Source& source, const Attachment& attachment, Span body);

class Packer {
 public:
  Packer(Compression compression, int level);
  ~Packer();
  Packer(const Packer&) = delete;
  Packer& operator=(const Packer&) = delete;

  std::string_view name() const noexcept;  // as a Chunk has it
  // Valid until the next call.
  Span pack(Span records);

 private:
  struct Context;
  Compression compression_;
  std::unique_ptr<Context> context_;
  Buffer buffer_;
};

}  // namespace robocache::mcap
