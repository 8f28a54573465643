#include "formats/mcap/chunks.h"

#include <lz4frame.h>
#include <zstd.h>

#include "io/crc.h"

namespace robocache::mcap {

namespace {

struct FreeZstd {
  void operator()(ZSTD_DCtx* context) const noexcept { ZSTD_freeDCtx(context); }
  void operator()(ZSTD_CCtx* context) const noexcept { ZSTD_freeCCtx(context); }
};
struct FreeLz4 {
  void operator()(LZ4F_dctx* context) const noexcept { LZ4F_freeDecompressionContext(context); }
};

// The most bytes that one byte can become: a zstd block of 4 bytes can mean 128 KiB; a byte of lz4 lengthens a copy by 255.
constexpr std::uint64_t most_of_zstd = 1 << 15, most_of_lz4 = 255;

void check_size(const InputFile& source, const Chunk& chunk) {
  const std::uint64_t size = chunk.uncompressed_size, packed = chunk.records.size();
  if (chunk.compression.empty()) {
    if (size != packed) throw Damage(concat("holds ", packed, " bytes and says ", size));
    return;
  }
  if (size > source.max_chunk)
    throw Damage(concat("unpacks to ", size, " bytes; at most ", source.max_chunk, " are read"));
  const std::uint64_t most = chunk.compression == "zstd" ? most_of_zstd : most_of_lz4;
  if (size / most > packed)
    throw Damage(concat("cannot unpack from ", packed, " bytes to the ", size, " that it says"));
}

}  // namespace

struct Unpacker::Contexts {
  std::unique_ptr<ZSTD_DCtx, FreeZstd> zstd;
  std::unique_ptr<LZ4F_dctx, FreeLz4> lz4;
};

Unpacker::Unpacker() : contexts_(std::make_unique<Contexts>()) {}
Unpacker::~Unpacker() = default;

Span Unpacker::unpack(const InputFile& source, const Chunk& chunk, ReusedBuffer& into) {
  if (!chunk.compression.empty() && chunk.compression != "zstd" && chunk.compression != "lz4") {
    throw Damage(concat("is compressed with ", quote(chunk.compression), "; expected zstd, lz4 or nothing"));
  }
  check_size(source, chunk);
  Span records = chunk.records;
  if (!chunk.compression.empty()) {
    const std::span<std::byte> to = into.room_for(chunk.uncompressed_size);
    chunk.compression == "zstd" ? unpack_zstd(chunk.records, to) : unpack_lz4(chunk.records, to);
    records = to;
  }
  if (source.options.check_crc && chunk.uncompressed_crc != 0 && io::crc32(0, records) != chunk.uncompressed_crc) {
    throw Damage("does not match its CRC");
  }
  return records;
}

void Unpacker::unpack_zstd(Span packed, std::span<std::byte> to) {
  if (!contexts_->zstd) contexts_->zstd.reset(ZSTD_createDCtx());
  if (!contexts_->zstd) throw std::bad_alloc();
  const std::size_t size =
      ZSTD_decompressDCtx(contexts_->zstd.get(), to.data(), to.size(), packed.data(), packed.size());
  if (ZSTD_isError(size) != 0) throw Damage(concat("does not unpack: zstd says \"", ZSTD_getErrorName(size), "\""));
  if (size != to.size()) throw Damage(concat("unpacks to ", size, " bytes and says ", to.size()));
}

void Unpacker::unpack_lz4(Span packed, std::span<std::byte> to) {
  if (!contexts_->lz4) {
    LZ4F_dctx* context = nullptr;
    if (LZ4F_isError(LZ4F_createDecompressionContext(&context, LZ4F_VERSION)) != 0) throw std::bad_alloc();
    contexts_->lz4.reset(context);
  }
  LZ4F_resetDecompressionContext(contexts_->lz4.get());
  std::size_t done = 0, hint = packed.empty() ? 0 : 1;
  while (!packed.empty()) {
    std::size_t got = to.size() - done, taken = packed.size();
    LZ4F_decompressOptions_t options{};
    options.stableDst = 1;
    hint = LZ4F_decompress(contexts_->lz4.get(), to.data() + done, &got, packed.data(), &taken, &options);
    if (LZ4F_isError(hint) != 0) throw Damage(concat("does not unpack: lz4 says \"", LZ4F_getErrorName(hint), "\""));
    if (got == 0 && taken == 0) throw Damage(concat("unpacks to more than the ", to.size(), " bytes that it says"));
    done += got;
    packed = packed.subspan(taken);
  }
  if (hint != 0) throw Damage("ends inside an lz4 frame");
  if (done != to.size()) throw Damage(concat("unpacks to ", done, " bytes and says ", to.size()));
}

void check_crc(const InputFile& source, const Attachment& attachment, Span body) {
  if (!source.options.check_crc || attachment.crc == 0) return;
  const auto size = static_cast<std::size_t>(attachment.data.data() + attachment.data.size() - body.data());
  if (io::crc32(0, body.first(size)) != attachment.crc) throw Damage("does not match its CRC");
}

struct Packer::Context {
  std::unique_ptr<ZSTD_CCtx, FreeZstd> zstd;
};

Packer::Packer(Compression compression, int level) : compression_(compression) {
  if (compression != Compression::zstd) return;
  context_ = std::make_unique<Context>();
  context_->zstd.reset(ZSTD_createCCtx());
  if (!context_->zstd) throw std::bad_alloc();
  if (level < ZSTD_minCLevel() || level > ZSTD_maxCLevel()) {
    throw Error(ErrorKind::value,
                concat("mcap: level is ", level, "; zstd has ", ZSTD_minCLevel(), " to ", ZSTD_maxCLevel()));
  }
  ZSTD_CCtx_setParameter(context_->zstd.get(), ZSTD_c_compressionLevel, level);
}
Packer::~Packer() = default;

std::string_view Packer::name() const noexcept {
  return compression_ == Compression::zstd ? "zstd" : compression_ == Compression::lz4 ? "lz4" : "";
}

Span Packer::pack(Span records) {
  if (compression_ == Compression::none) return records;
  LZ4F_preferences_t preferences{};
  preferences.frameInfo.blockSizeID = LZ4F_max4MB;
  preferences.frameInfo.contentSize = records.size();
  const bool zstd = compression_ == Compression::zstd;
  const std::size_t bound =
      zstd ? ZSTD_compressBound(records.size()) : LZ4F_compressFrameBound(records.size(), &preferences);
  const std::span<std::byte> to = buffer_.room_for(bound);
  const std::size_t size =
      zstd ? ZSTD_compress2(context_->zstd.get(), to.data(), to.size(), records.data(), records.size())
           : LZ4F_compressFrame(to.data(), to.size(), records.data(), records.size(), &preferences);
  if ((zstd ? ZSTD_isError(size) : LZ4F_isError(size)) != 0) throw std::bad_alloc();  // the only way to fail
  return to.first(size);
}

}  // namespace robocache::mcap
