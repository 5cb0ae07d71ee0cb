// What the kernels of a step share: a thread has W neighbouring units of a lane, so that a warp
// reads and writes 128 or 512 bytes in a row.
#pragma once

#include "cells.cuh"

namespace cells {

constexpr int kBlock = 128; // threads of a block, here and in the host's code

// Where a thread's units are: unit + [0, W) of a lane, whose state begins at state.
struct place {
    bool inside;
    int lane, unit;
    int64_t state; // lane*H + unit
};

template <int W> DEVICE place placed(int B, int H)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x, a_lane = H / W;
    place p;
    p.inside = i < B * a_lane;
    p.lane = i / a_lane;
    p.unit = i % a_lane * W;
    p.state = (int64_t)p.lane * H + p.unit;
    return p;
}

// The sums of gate g: of the input's side, the recurrent side and its bias.
template <int W>
DEVICE values<W> gate_sums(const float *act, const float *rec, const float *bias, const place &p,
                           int g, int H)
{
    return load<W>(act + g * H) + load<W>(rec + g * H) + load<W>(bias + g * H + p.unit);
}

} // namespace cells
