// The steps of the cells that mix h with a candidate n: see cells.cu.
#include "steps.cuh"

namespace cells {

template <int W>
DEVICE void min_step(float *act, const float *before, float *after, int B, int H)
{
    const place p = placed<W>(B, H);
    if (!p.inside)
        return;
    act += (int64_t)p.lane * 2 * H + p.unit;
    values<W> z = load<W>(act), n = load<W>(act + H), h = load<W>(before + p.state);
    for (int k = 0; k < W; k++) {
        z.at[k] = sigmoid(z.at[k]);
        h.at[k] += z.at[k] * (n.at[k] - h.at[k]);
    }
    store(act, z);
    store(after + p.state, h);
}

// h' = (1-z) h + z n, from the input's sums alone; z, in act. 20 bytes a unit.
KERNEL_BOUNDS(cell_min_forward, kBlock, 4, float *act, const float *before, float *after, int B,
              int H, int, int wide)
{
    if (wide)
        min_step<4>(act, before, after, B, H);
    else
        min_step<1>(act, before, after, B, H);
}

template <int W>
DEVICE void min_backstep(float *act, const float *before, const float *dy, const float *later,
                         float *dh, int B, int H)
{
    const place p = placed<W>(B, H);
    if (!p.inside)
        return;
    act += (int64_t)p.lane * 2 * H + p.unit;
    values<W> z = load<W>(act), n = load<W>(act + H), h = load<W>(before + p.state);
    values<W> d = load<W>(dy + p.state) + load_or_zero<W>(later, p.state);
    for (int k = 0; k < W; k++) {
        const float gate = z.at[k], dn = d.at[k] * gate;
        z.at[k] = dn * (n.at[k] - h.at[k]) * (1 - gate);
        n.at[k] = dn;
        d.at[k] *= 1 - gate;
    }
    store(act, z);
    store(act + H, n);
    store(dh + p.state, d);
}

// The gradient of the sums, in act, and of h, in dh, which may be where later is. 32 bytes a unit.
KERNEL_BOUNDS(cell_min_backward, kBlock, 4, float *act, const float *before, const float *dy,
              const float *later, float *dh, int B, int H, int, int wide)
{
    if (wide)
        min_backstep<4>(act, before, dy, later, dh, B, H);
    else
        min_backstep<1>(act, before, dy, later, dh, B, H);
}

template <int W>
DEVICE void clockwork_step(float *act, const float *rec, const float *bias, const float *periods,
                           const float *before, const float *count, float *after, float *counted,
                           const operand &next, int B, int H)
{
    const place p = placed<W>(B, H);
    if (!p.inside)
        return;
    values<W> n = load<W>(act + p.state) + load<W>(rec + p.state) + load<W>(bias + p.unit);
    values<W> h = load<W>(before + p.state), c = load<W>(count + p.state);
    const values<W> period = load<W>(periods + p.unit);
    for (int k = 0; k < W; k++) {
        const float more = c.at[k] + 1;
        n.at[k] = tanh(n.at[k]);
        if (c.at[k] < 1)
            h.at[k] = n.at[k];
        c.at[k] = more < period.at[k] ? more : 0;
    }
    store(act + p.state, n);
    store(after + p.state, h);
    store(counted + p.state, c);
    store(next, p.state, h);
}

// h' = n, in act, of the units whose count is 0, below 1; of the others h. periods: [H]. 28 bytes a
// unit.
KERNEL_BOUNDS(cell_clockwork_forward, kBlock, 4, float *act, const float *rec, const float *bias,
              const float *periods, const float *before, const float *count, float *after,
              float *counted, uint16_t *next, int B, int H, int format, int wide)
{
    const operand to = {nullptr, next, format};
    if (wide)
        clockwork_step<4>(act, rec, bias, periods, before, count, after, counted, to, B, H);
    else
        clockwork_step<1>(act, rec, bias, periods, before, count, after, counted, to, B, H);
}

template <int W>
DEVICE void clockwork_backstep(float *act, const float *count, const float *dy, const float *later,
                               float *dh, float *dc, const operand &next, int B, int H)
{
    const place p = placed<W>(B, H);
    if (!p.inside)
        return;
    values<W> n = load<W>(act + p.state), c = load<W>(count + p.state);
    values<W> d = load<W>(dy + p.state) + load_or_zero<W>(later, p.state);
    for (int k = 0; k < W; k++) {
        const bool works = c.at[k] < 1;
        n.at[k] = works ? d.at[k] * (1 - n.at[k] * n.at[k]) : 0;
        d.at[k] = works ? 0 : d.at[k];
        c.at[k] = 0;
    }
    store(act + p.state, n);
    store(dh + p.state, d);
    store(dc + p.state, c);
    store(next, p.state, n);
}

// The gradient of the sums, in act; dh as cell_gru_backward's; the count's, dc, is zero. 24 bytes a
// unit.
KERNEL_BOUNDS(cell_clockwork_backward, kBlock, 4, float *act, const float *count, const float *dy,
              const float *later, float *dh, float *dc, uint16_t *next, int B, int H, int format,
              int wide)
{
    const operand to = {nullptr, next, format};
    if (wide)
        clockwork_backstep<4>(act, count, dy, later, dh, dc, to, B, H);
    else
        clockwork_backstep<1>(act, count, dy, later, dh, dc, to, B, H);
}

// A leaky unit's share of a step: p's, of the layer's units from p.unit on, or the same for all.
template <int W> DEVICE values<W> leak_of(const float *p, float leak, int unit)
{
    values<W> a = load_or_zero<W>(p, unit);
    for (int k = 0; k < W; k++)
        a.at[k] = p ? sigmoid(a.at[k]) : leak;
    return a;
}

template <int W>
DEVICE void leaky_step(float *act, const float *rec, const float *bias, const float *weight,
                       const float *before, float *after, const operand &next, int B, int H,
                       float leak)
{
    const place p = placed<W>(B, H);
    if (!p.inside)
        return;
    values<W> n = load<W>(act + p.state) + load<W>(rec + p.state) + load<W>(bias + p.unit);
    values<W> a = leak_of<W>(weight, leak, p.unit), h = load<W>(before + p.state);
    for (int k = 0; k < W; k++) {
        n.at[k] = tanh(n.at[k]);
        h.at[k] += a.at[k] * (n.at[k] - h.at[k]);
    }
    store(act + p.state, n);
    store(after + p.state, h);
    store(next, p.state, h);
}

// h' = (1-a) h + a n; n, in act. weight: [H], a is its sigmoid, or null. 20 bytes a unit.
KERNEL_BOUNDS(cell_leaky_forward, kBlock, 4, float *act, const float *rec, const float *bias,
              const float *weight, const float *before, float *after, uint16_t *next, int B, int H,
              float leak, int format, int wide)
{
    const operand to = {nullptr, next, format};
    if (wide)
        leaky_step<4>(act, rec, bias, weight, before, after, to, B, H, leak);
    else
        leaky_step<1>(act, rec, bias, weight, before, after, to, B, H, leak);
}

template <int W>
DEVICE void leaky_backstep(float *act, const float *weight, const float *before, float *dweight,
                           const float *dy, const float *later, float *dh, const operand &next,
                           int B, int H, float leak)
{
    const place p = placed<W>(B, H);
    if (!p.inside)
        return;
    values<W> n = load<W>(act + p.state), h = load<W>(before + p.state);
    values<W> a = leak_of<W>(weight, leak, p.unit);
    values<W> d = load<W>(dy + p.state) + load_or_zero<W>(later, p.state);
    for (int k = 0; k < W; k++) {
        const float x = n.at[k], share = a.at[k];
        n.at[k] = d.at[k] * share * (1 - x * x);
        a.at[k] = d.at[k] * (x - h.at[k]) * share * (1 - share);
        d.at[k] *= 1 - share;
    }
    store(act + p.state, n);
    if (dweight)
        store(dweight + p.state, a);
    store(dh + p.state, d);
    store(next, p.state, n);
}

// The gradient of the sums, in act; the step's terms of weight's, in dweight unless it is null; dh
// as cell_gru_backward's. 28 bytes a unit.
KERNEL_BOUNDS(cell_leaky_backward, kBlock, 4, float *act, const float *weight, const float *before,
              float *dweight, const float *dy, const float *later, float *dh, uint16_t *next,
              int B, int H, float leak, int format, int wide)
{
    const operand to = {nullptr, next, format};
    if (wide)
        leaky_backstep<4>(act, weight, before, dweight, dy, later, dh, to, B, H, leak);
    else
        leaky_backstep<1>(act, weight, before, dweight, dy, later, dh, to, B, H, leak);
}

template <int W>
DEVICE void gru_step(float *act, const float *rec, const float *bias, const float *before, float *q,
                     float *after, const operand &next, int B, int H)
{
    const place p = placed<W>(B, H);
    if (!p.inside)
        return;
    const int64_t row = (int64_t)p.lane * 3 * H + p.unit;
    act += row;
    rec += row;
    values<W> r = gate_sums<W>(act, rec, bias, p, 0, H), z = gate_sums<W>(act, rec, bias, p, 1, H);
    values<W> n = load<W>(act + 2 * H), h0 = load<W>(before + p.state), h;
    values<W> product = load<W>(rec + 2 * H) + load<W>(bias + 2 * H + p.unit);
    for (int k = 0; k < W; k++)
        gru_forward(r.at[k], z.at[k], n.at[k], product.at[k], h0.at[k], h.at[k]);
    store(act, r);
    store(act + H, z);
    store(act + 2 * H, n);
    store(q + p.state, product);
    store(after + p.state, h);
    store(next, p.state, h);
}

// h'; the gates, in act; q = W_hn h + b_hn. 48 bytes a unit.
KERNEL_BOUNDS(cell_gru_forward, kBlock, 4, float *act, const float *rec, const float *bias,
              const float *before, float *q, float *after, uint16_t *next, int B, int H, int format,
              int wide)
{
    const operand to = {nullptr, next, format};
    if (wide)
        gru_step<4>(act, rec, bias, before, q, after, to, B, H);
    else
        gru_step<1>(act, rec, bias, before, q, after, to, B, H);
}

template <int W>
DEVICE void gru_backstep(float *act, float *q, const operand &drec, const float *before,
                         const float *dy, const float *later, float *dh, int B, int H)
{
    const place p = placed<W>(B, H);
    if (!p.inside)
        return;
    const int64_t row = (int64_t)p.lane * 3 * H + p.unit;
    act += row;
    values<W> r = load<W>(act), z = load<W>(act + H), n = load<W>(act + 2 * H);
    values<W> dq = load<W>(q + p.state), h0 = load<W>(before + p.state);
    values<W> d = load<W>(dy + p.state) + load_or_zero<W>(later, p.state);
    for (int k = 0; k < W; k++)
        gru_backward(r.at[k], z.at[k], n.at[k], dq.at[k], h0.at[k], d.at[k]);
    store(act, r);
    store(act + H, z);
    store(act + 2 * H, n);
    store(drec, row, r);
    store(drec, row + H, z);
    store(drec, row + 2 * H, dq);
    store(q + p.state, dq);
    store(dh + p.state, d);
}

// The gradient of the input's sums, in act, of the recurrent side's, in drec: [B, 3*H], of q, in q,
// and in dh, which may be where later is, what the gradient of h gets other than through W_hh. 60
// bytes a unit.
KERNEL_BOUNDS(cell_gru_backward, kBlock, 4, float *act, float *q, float *drec, uint16_t *rounded,
              const float *before, const float *dy, const float *later, float *dh, int B, int H,
              int format, int wide)
{
    const operand to = {drec, rounded, format};
    if (wide)
        gru_backstep<4>(act, q, to, before, dy, later, dh, B, H);
    else
        gru_backstep<1>(act, q, to, before, dy, later, dh, B, H);
}

template <int W>
DEVICE void reset_step(float *act, const float *rec, const float *bias, const float *before,
                       float *rh, const operand &next, int B, int H, int K)
{
    const place p = placed<W>(B, H);
    if (!p.inside)
        return;
    act += (int64_t)p.lane * K * H + p.unit;
    rec += (int64_t)p.lane * (K - 1) * H + p.unit;
    values<W> r = gate_sums<W>(act, rec, bias, p, 0, H), h = load<W>(before + p.state);
    for (int k = 0; k < W; k++) {
        r.at[k] = sigmoid(r.at[k]);
        h.at[k] *= r.at[k];
    }
    store(act, r);
    if (K == GRU_GATES) {
        values<W> z = gate_sums<W>(act, rec, bias, p, 1, H);
        for (int k = 0; k < W; k++)
            z.at[k] = sigmoid(z.at[k]);
        store(act + H, z);
    }
    store(rh + p.state, h);
    store(next, p.state, h);
}

// The first half of a cell that resets h before the product: GRUResetBefore, of three gates r, z,
// n, or MGU, of two: f, which is r and 1-z, and n. Makes r, z and rh = r h, which W_hn then
// multiplies. rec: [B, (K-1)*H]. 32 bytes a unit.
KERNEL_BOUNDS(cell_reset_forward, kBlock, 4, float *act, const float *rec, const float *bias,
              const float *before, float *rh, uint16_t *next, int B, int H, int K, int format,
              int wide)
{
    const operand to = {nullptr, next, format};
    if (wide)
        reset_step<4>(act, rec, bias, before, rh, to, B, H, K);
    else
        reset_step<1>(act, rec, bias, before, rh, to, B, H, K);
}

// z, from the gates of a lane.
template <int W> DEVICE values<W> update_gate(const float *act, int H, int K)
{
    values<W> z = load<W>(K == GRU_GATES ? act + H : act);
    for (int k = 0; k < W; k++)
        z.at[k] = K == GRU_GATES ? z.at[k] : 1 - z.at[k];
    return z;
}

template <int W>
DEVICE void candidate_step(float *act, const float *rec, const float *bias, const float *before,
                           float *after, const operand &next, int B, int H, int K)
{
    const place p = placed<W>(B, H);
    if (!p.inside)
        return;
    act += (int64_t)p.lane * K * H + p.unit;
    const int N = (K - 1) * H;
    values<W> n = load<W>(act + N) + load<W>(rec + p.state) + load<W>(bias + N + p.unit);
    values<W> z = update_gate<W>(act, H, K), h = load<W>(before + p.state);
    for (int k = 0; k < W; k++) {
        n.at[k] = tanh(n.at[k]);
        h.at[k] = (1 - z.at[k]) * n.at[k] + z.at[k] * h.at[k];
    }
    store(act + N, n);
    store(after + p.state, h);
    store(next, p.state, h);
}

// The second half: n and h'. rec: [B, H], W_hn (r h). 24 bytes a unit.
KERNEL_BOUNDS(cell_candidate_forward, kBlock, 4, float *act, const float *rec, const float *bias,
              const float *before, float *after, uint16_t *next, int B, int H, int K, int format,
              int wide)
{
    const operand to = {nullptr, next, format};
    if (wide)
        candidate_step<4>(act, rec, bias, before, after, to, B, H, K);
    else
        candidate_step<1>(act, rec, bias, before, after, to, B, H, K);
}

template <int W>
DEVICE void candidate_backstep(float *act, float *dz, const operand &dn, const float *before,
                               const float *dy, const float *later, float *dh, int B, int H, int K)
{
    const place p = placed<W>(B, H);
    if (!p.inside)
        return;
    act += (int64_t)p.lane * K * H + p.unit;
    const int N = (K - 1) * H;
    values<W> z = update_gate<W>(act, H, K), n = load<W>(act + N), h0 = load<W>(before + p.state);
    values<W> d = load<W>(dy + p.state) + load_or_zero<W>(later, p.state);
    for (int k = 0; k < W; k++) {
        const float gz = z.at[k], gn = n.at[k];
        z.at[k] = d.at[k] * (h0.at[k] - gn) * gz * (1 - gz);
        n.at[k] = d.at[k] * (1 - gz) * (1 - gn * gn);
        d.at[k] *= gz;
    }
    store(K == GRU_GATES ? act + H : dz + p.state, z);
    store(act + N, n);
    store(dn, p.state, n);
    store(dh + p.state, d);
}

// The second half's derivative: the gradients of the sums of z and n, in act, the latter also in
// dn: [B, H]; dh as cell_gru_backward's. MGU's z has no place in act: its gradient is in dz:
// [B, H]. 36 bytes a unit.
KERNEL_BOUNDS(cell_candidate_backward, kBlock, 4, float *act, float *dz, float *dn,
              uint16_t *rounded, const float *before, const float *dy, const float *later,
              float *dh, int B, int H, int K, int format, int wide)
{
    const operand to = {dn, rounded, format};
    if (wide)
        candidate_backstep<4>(act, dz, to, before, dy, later, dh, B, H, K);
    else
        candidate_backstep<1>(act, dz, to, before, dy, later, dh, B, H, K);
}

template <int W>
DEVICE void reset_backstep(float *act, const float *dz, const operand &drec, const float *drh,
                           const float *before, float *dh, int B, int H, int K)
{
    const place p = placed<W>(B, H);
    if (!p.inside)
        return;
    act += (int64_t)p.lane * K * H + p.unit;
    const int64_t row = (int64_t)p.lane * (K - 1) * H + p.unit;
    values<W> r = load<W>(act), d = load<W>(dh + p.state);
    values<W> z = load<W>(K == GRU_GATES ? act + H : dz + p.state);
    values<W> through = load<W>(drh + p.state), h0 = load<W>(before + p.state);
    for (int k = 0; k < W; k++) {
        const float g = r.at[k], dr = through.at[k] * h0.at[k] * g * (1 - g);
        r.at[k] = K == GRU_GATES ? dr : dr - z.at[k];
        d.at[k] += through.at[k] * g;
    }
    store(act, r);
    store(drec, row, r);
    if (K == GRU_GATES)
        store(drec, row + H, z);
    store(dh + p.state, d);
}

// The first half's derivative, from drh, the gradient of r h: the gradient of the sums of r, in
// act, and with that of z, if it has a place there, in drec: [B, (K-1)*H]; dh grows by what comes
// through r h. 36 bytes a unit.
KERNEL_BOUNDS(cell_reset_backward, kBlock, 4, float *act, const float *dz, float *drec,
              uint16_t *rounded, const float *drh, const float *before, float *dh, int B, int H,
              int K, int format, int wide)
{
    const operand to = {drec, rounded, format};
    if (wide)
        reset_backstep<4>(act, dz, to, drh, before, dh, B, H, K);
    else
        reset_backstep<1>(act, dz, to, drh, before, dh, B, H, K);
}

} // namespace cells
