// What a product's operands, float32 in memory, are rounded to before they are multiplied.
#pragma once

#include "device.cuh"

namespace rounding {

// The numbers are the host's too.
enum format { kFP32, kTF32, kBF16, kFP16 };

// The float nearest to v that has the format.
DEVICE float rounded(float v, int to)
{
    switch (to) {
    case kTF32:
        return to_tf32(v);
    case kBF16:
        return from_bf16(to_bf16(v));
    case kFP16:
        return from_fp16(to_fp16(v));
    }
    return v;
}

DEVICE float4 rounded(const float4 &v, int to)
{
    if (to == kFP32)
        return v;
    return make_float4(rounded(v.x, to), rounded(v.y, to), rounded(v.z, to), rounded(v.w, to));
}

} // namespace rounding
