// The arithmetic of a cell's step and of its derivative, one unit at a time: the equations of
// package compute, in float32. A forward function takes the sums of the input's and the recurrent
// side and leaves the gates' values in their place; a backward one takes the gates' values and
// leaves the gradients of the sums.
#pragma once

#include "rounding.cuh"

namespace cells {

DEVICE float sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }

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
    return tanhf(x);
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
    g = tanhf(g);
    o = sigmoid(o);
    c = f * before + i * g;
    h = o * tanhf(c);
}

// dc: in, the gradient of c_t; out, of c_{t-1}.
DEVICE void lstm_backward(float &i, float &f, float &g, float &o, float before, float c, float dh,
                          float &dc)
{
    const float tc = tanhf(c), gi = i, gf = f, gg = g, go = o;
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
    n = tanhf(n + r * q);
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

} // namespace cells
