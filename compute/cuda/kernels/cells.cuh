// The arithmetic of a cell's step and of its derivative, one unit at a time: the equations of
// package compute, in float32. A forward function takes the sums of the input's and the recurrent
// side and leaves the gates' values in their place; a backward one takes the gates' values and
// leaves the gradients of the sums.
#pragma once

#include "../../cpu/kernels/cells_gen.h"
#include "rounding.cuh"

namespace cells {

constexpr float kLog2E = 1.44269504f;

// 1/(1 + e^-x), with an absolute error of at most 3e-7. Neither function has branches.
DEVICE float sigmoid(float x) { return reciprocal_approx(1.0f + exp2_approx(-kLog2E * x)); }

// tanh(x), with a relative error of at most 6e-7: 1 - 2/(1 + e^2|x|), which loses digits near zero,
// where it is a polynomial, a minimax one of tanh(x)/x in x^2.
DEVICE float tanh(float x)
{
    const float e = exp2_approx(2 * kLog2E * fabsf(x)), s = x * x;
    const float far = fmaf(-2.0f, reciprocal_approx(1.0f + e), 1.0f);
    float p = fmaf(s, 0.0179887444f, -0.0533871106f);
    p = fmaf(s, p, 0.133304765f);
    p = fmaf(s, p, -0.333333111f);
    return fabsf(x) < 0.5f ? fmaf(s * p, x, x) : copysignf(far, x);
}

// W neighbouring values of a row: 1, or 4 that begin on a 16-byte boundary.
template <int W> struct values {
    float at[W];
};

template <int W> DEVICE values<W> load(const float *from)
{
    values<W> v;
    if constexpr (W == 4) {
        float4 x = *(const float4 *)from;
        v.at[0] = x.x;
        v.at[1] = x.y;
        v.at[2] = x.z;
        v.at[3] = x.w;
    } else {
        v.at[0] = *from;
    }
    return v;
}

template <int W> DEVICE void store(float *to, const values<W> &v)
{
    if constexpr (W == 4) {
        *(float4 *)to = make_float4(v.at[0], v.at[1], v.at[2], v.at[3]);
    } else {
        *to = v.at[0];
    }
}

// What a product multiplies next: 16-bit numbers of a format, where the host keeps W_hh in it, too,
// else the numbers themselves, or nothing more where they have a place already.
struct operand {
    float *exact;
    uint16_t *rounded;
    int format;
};

template <int W> DEVICE void store(const operand &to, int64_t offset, const values<W> &v)
{
    if (!to.rounded) {
        if (to.exact)
            store(to.exact + offset, v);
        return;
    }
    uint16_t halves[W];
    for (int i = 0; i < W; i++)
        halves[i] = to.format == rounding::kFP16 ? to_fp16(v.at[i]) : to_bf16(v.at[i]);
    if constexpr (W == 4)
        *(uint2 *)(to.rounded + offset) =
            make_uint2(pack(halves[0], halves[1]), pack(halves[2], halves[3]));
    else
        to.rounded[offset] = halves[0];
}

// Zeros where there is nothing.
template <int W> DEVICE values<W> load_or_zero(const float *from, int64_t offset)
{
    if (from)
        return load<W>(from + offset);
    values<W> v;
    for (int i = 0; i < W; i++)
        v.at[i] = 0;
    return v;
}

template <int W> DEVICE values<W> operator+(values<W> a, const values<W> &b)
{
    for (int i = 0; i < W; i++)
        a.at[i] += b.at[i];
    return a;
}

// h' = tanh(x), or max(0, x), of which a NaN stays one.
DEVICE float rnn_forward(float x, bool relu)
{
    if (relu)
        return x < 0 ? 0 : x;
    return tanh(x);
}

DEVICE float rnn_backward(float h, float dh, bool relu)
{
    if (relu)
        return h == 0 ? 0 : dh;
    return dh * (1 - h * h);
}

// c' = f c + i g, h' = o tanh(c').
DEVICE void lstm_forward(float &i, float &f, float &g, float &o, float before, float &c, float &h)
{
    i = sigmoid(i);
    f = sigmoid(f);
    g = tanh(g);
    o = sigmoid(o);
    c = f * before + i * g;
    h = o * tanh(c);
}

// dc: in, the gradient of c_t; out, of c_{t-1}.
DEVICE void lstm_backward(float &i, float &f, float &g, float &o, float before, float c, float dh,
                          float &dc)
{
    const float tc = tanh(c), gi = i, gf = f, gg = g, go = o;
    const float d = dc + dh * go * (1 - tc * tc);
    i = d * gg * gi * (1 - gi);
    f = d * before * gf * (1 - gf);
    g = d * gi * (1 - gg * gg);
    o = dh * tc * go * (1 - go);
    dc = d * gf;
}

// n = tanh(n + r q), h' = (1-z) n + z h; q = W_hn h + b_hn.
DEVICE void gru_forward(float &r, float &z, float &n, float q, float before, float &h)
{
    r = sigmoid(r);
    z = sigmoid(z);
    n = tanh(n + r * q);
    h = (1 - z) * n + z * before;
}

// q: out, its own gradient. dh: out, what of it does not pass through W_hh.
DEVICE void gru_backward(float &r, float &z, float &n, float &q, float before, float &dh)
{
    const float gr = r, gz = z, gn = n;
    n = dh * (1 - gz) * (1 - gn * gn);
    r = n * q * gr * (1 - gr);
    z = dh * (before - gn) * gz * (1 - gz);
    q = n * gr;
    dh *= gz;
}

// A cell as a type, so that the code of a persistent kernel's step is made for each, without the
// branches of the others. It has its row of the table of cells.
template <int Gates, int States, int Kept> struct row {
    static constexpr int gates = Gates, states = States, kept = Kept;
    static constexpr bool gated = Gates > 1; // h' depends on h, or c, besides the product
};
#define RONDO_CELL_TYPE(name, gates, states, kept, peepholes) \
    struct name##_cell : row<gates, states, kept> {           \
        static constexpr int number = name;                   \
    };
RONDO_CELLS(RONDO_CELL_TYPE)

// gates_of is the gates of a cell that a persistent kernel can have. It lists no others, so that a
// new cell does not change the code of these kernels.
DEVICE int gates_of(int number)
{
    constexpr int all[] = {RNN_GATES,  RNN_RELU_GATES,      GRU_GATES, GRU_RESET_BEFORE_GATES,
                           LSTM_GATES, LSTM_PEEPHOLE_GATES};
    return all[number];
}

// with calls f with the cell of a number. The cells that are not here take a product a step.
template <class F> DEVICE void with(int number, const F &f)
{
    switch (number) {
    case LSTM:
        return f(LSTM_cell());
    case GRU:
        return f(GRU_cell());
    case RNN:
        return f(RNN_cell());
    case RNN_RELU:
        return f(RNN_RELU_cell());
    }
}

} // namespace cells
