// Rows of an embedding table, decoded from the device order of products: the table is often the head as well. The bits
// are those of dequantise_row (quant/decode.cpp): products of scales and codes are exact, a minimum rounds once.
#include "gpu/matmul/matmul.h"
#include "gpu/matmul/matmul_layout.h"
#include "gpu/matmul/matmul_types.h"

namespace tnd::gpu {
namespace {

constexpr int kThreads = 256;

TND_DEVICE float half_at(const uint8_t* p) {
  return half_to_float(*reinterpret_cast<const uint16_t*>(p));
}

// Element e of output o of a super-block.
TND_DEVICE float decode(DType type, const uint8_t* super, int o, int e) {
  const int j = e / 32;
  const int in_group = e % 32;
  const int nibble = super[nibble_at(o, j, in_group)] >> j % 2 * 4 & 15;
  const auto fifth = [&](int plane) { return (super[plane + plane1_at(o, in_group)] >> j & 1) << 4; };
  switch (type) {
    case DType::kQ4_K:
    case DType::kQ5_K: {
      const bool five = type == DType::kQ5_K;
      const uint8_t* h = super + (five ? LayoutQ5K::kHeader : LayoutQ4K::kHeader) + 16 * o;
      const uint8_t* s = h + 4;
      const int scale = j < 4 ? s[j] & 63 : (s[j + 4] & 15) | s[j - 4] >> 6 << 4;
      const int min = j < 4 ? s[j + 4] & 63 : s[j + 4] >> 4 | s[j] >> 6 << 4;
      const int n = five ? nibble | fifth(LayoutQ5K::kPlane) : nibble;
      return half_at(h) * static_cast<float>(scale) * static_cast<float>(n) - half_at(h + 2) * static_cast<float>(min);
    }
    case DType::kQ6_K: {
      const int upper = (super[LayoutQ6K::kPlane + plane2_at(o, j, in_group)] >> j % 4 * 2 & 3) ^ 2;
      const int scale = static_cast<int8_t>(super[LayoutQ6K::kScales + 16 * o + e / 16]);
      return half_at(super + LayoutQ6K::kD + 2 * o) * static_cast<float>(scale * ((nibble | upper << 4) - 32));
    }
    case DType::kIQ4_XS: {
      const int scale = static_cast<int8_t>(super[LayoutIQ4XS::kScales + 8 * o + j]);
      const float d = half_at(super + LayoutIQ4XS::kD + 2 * o) * static_cast<float>(scale);
      return d * static_cast<float>(signed_byte(table_values(static_cast<uint32_t>(nibble)), 0));
    }
    case DType::kQ8_0:
      return static_cast<float>(static_cast<int8_t>(super[byte_at(o, j, in_group)])) *
             half_at(super + LayoutQ8::kD + 16 * o + 2 * j);
    case DType::kQ5_0: {
      using Layout = LayoutQ45<true, false>;
      const int n = (nibble | fifth(Layout::kPlane)) ^ 16;
      return static_cast<float>(n - 16) * half_at(super + Layout::kD + 16 * o + 2 * j);
    }
    case DType::kQ5_1: {
      using Layout = LayoutQ45<true, true>;
      const uint8_t* d = super + Layout::kD + 16 * o + 2 * j;
      return static_cast<float>(nibble | fifth(Layout::kPlane)) * half_at(d) + half_at(d + Layout::kM - Layout::kD);
    }
    case DType::kQ4_1: {
      using Layout = LayoutQ45<false, true>;
      const uint8_t* d = super + Layout::kD + 16 * o + 2 * j;
      return static_cast<float>(nibble) * half_at(d) + half_at(d + Layout::kM - Layout::kD);
    }
    case DType::kIQ4_NL:
      return half_at(super + LayoutQ45<false, false>::kD + 16 * o + 2 * j) *
             static_cast<float>(signed_byte(table_values(static_cast<uint32_t>(nibble)), 0));
    default:  // Q4_0
      return static_cast<float>((nibble ^ 8) - 8) * half_at(super + LayoutQ45<false, false>::kD + 16 * o + 2 * j);
  }
}

TND_DEVICE float decode_float(DType type, const uint8_t* unit, int o, int k) {
  const int elems = type == DType::kF32 ? 4 : 8;
  const uint8_t* step = unit + k / elems * 512 + 16 * o;
  if (type == DType::kF32) return reinterpret_cast<const float*>(step)[k % 4];
  const uint16_t bits = reinterpret_cast<const uint16_t*>(step)[k % 8];
  return type == DType::kF16 ? half_to_float(bits) : bfloat_to_float(bits);
}

__global__ void __launch_bounds__(kThreads) embed_kernel(EmbedArgs args) {
  wait_for_previous();
  const int k = static_cast<int>(blockIdx.x * kThreads + threadIdx.x);
  if (k >= args.table.k || static_cast<int>(blockIdx.y) >= rows_in_use(args.live, args.rows)) return;
  const DType type = args.table.type;
  const int token = args.tokens[blockIdx.y];
  const int outs = unit_outs(type);
  const uint8_t* unit = args.table.data + token / outs * unit_bytes(type, args.table.k);
  float value;
  if (is_float_type(type)) {
    value = decode_float(type, unit, token % outs, k);
  } else {
    value = decode(type, unit + int64_t{k / kSuper} * super_bytes(type), token % outs, k % kSuper);
  }
  args.y[blockIdx.y * args.y_stride + k] = value;
}

}  // namespace

void launch_embed(Stream& stream, const EmbedArgs& args) {
  launch(stream,
         {.grid = {static_cast<unsigned>((args.table.k + kThreads - 1) / kThreads), static_cast<unsigned>(args.rows)},
          .block = {kThreads},
          .overlap = true,
          .name = "embed"},
         embed_kernel, args);
}

}  // namespace tnd::gpu
