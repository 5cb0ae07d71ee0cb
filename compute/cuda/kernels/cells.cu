// The steps of a recurrent layer whose recurrence is one product a step: the gates of a step from
// its sums, and the gradients of the sums from the gates, one kernel each for every cell.
//
// Letters as in package compute. act: [B, K*H], h, c, q and every gradient of them: [B, H], all of
// one step. Every kernel is bound by memory, and its comment says what it moves. Where the host
// keeps W_hh in 16 bits, a kernel also leaves what that multiplies next in 16 bits, in next; or,
// instead of in float32, in rounded.
#include "steps.cuh"
#include "sums.cuh"

namespace cells {

template <int W>
DEVICE void rnn_step(float *act, const float *rec, const float *bias, float *after,
                     const operand &next, int B, int H, bool relu)
{
    const place p = placed<W>(B, H);
    if (!p.inside)
        return;
    values<W> x = load<W>(act + p.state) + load<W>(rec + p.state) + load<W>(bias + p.unit);
    for (int i = 0; i < W; i++)
        x.at[i] = rnn_forward(x.at[i], relu);
    store(act + p.state, x);
    store(after + p.state, x);
    store(next, p.state, x);
}

// h' from act, the input's side, and rec, the recurrent side's product. 16 bytes a unit.
KERNEL_BOUNDS(cell_rnn_forward, kBlock, 4, float *act, const float *rec, const float *bias,
              float *after, uint16_t *next, int B, int H, int relu, int format, int wide)
{
    const operand to = {nullptr, next, format};
    if (wide)
        rnn_step<4>(act, rec, bias, after, to, B, H, relu);
    else
        rnn_step<1>(act, rec, bias, after, to, B, H, relu);
}

template <int W>
DEVICE void rnn_backstep(float *act, const float *after, const float *dy, const float *later,
                         const operand &next, int B, int H, bool relu)
{
    const place p = placed<W>(B, H);
    if (!p.inside)
        return;
    values<W> h = load<W>(after + p.state);
    values<W> dh = load<W>(dy + p.state) + load_or_zero<W>(later, p.state);
    for (int i = 0; i < W; i++)
        dh.at[i] = rnn_backward(h.at[i], dh.at[i], relu);
    store(act + p.state, dh);
    store(next, p.state, dh);
}

// The gradient of the sums, in act, from that of h': dy and what comes from later steps, which is
// nothing where it is null. 16 bytes a unit.
KERNEL_BOUNDS(cell_rnn_backward, kBlock, 4, float *act, const float *after, const float *dy,
              const float *later, uint16_t *next, int B, int H, int relu, int format, int wide)
{
    const operand to = {nullptr, next, format};
    if (wide)
        rnn_backstep<4>(act, after, dy, later, to, B, H, relu);
    else
        rnn_backstep<1>(act, after, dy, later, to, B, H, relu);
}

// An LSTM's gates are i, f, g, o. The other cells have none for f, which is 1-i or 1: F is 0.
template <int W>
DEVICE void lstm_step(float *act, const float *rec, const float *bias, const float *before,
                      float *c_after, float *after, const operand &next, int B, int H, int cell)
{
    const place p = placed<W>(B, H);
    if (!p.inside)
        return;
    const int F = cell == LSTM;
    const int64_t row = (int64_t)p.lane * (3 + F) * H + p.unit;
    act += row;
    rec += row;
    values<W> i = gate_sums<W>(act, rec, bias, p, 0, H), f = gate_sums<W>(act, rec, bias, p, F, H);
    values<W> g = gate_sums<W>(act, rec, bias, p, F + 1, H);
    values<W> o = gate_sums<W>(act, rec, bias, p, F + 2, H);
    values<W> c0 = load<W>(before + p.state), c, h;
    for (int k = 0; k < W; k++) {
        if (!F) // the sums of 1 - sigmoid(x) and of 1
            f.at[k] = cell == LSTM_COUPLED ? -i.at[k] : INFINITY;
        lstm_forward(i.at[k], f.at[k], g.at[k], o.at[k], c0.at[k], c.at[k], h.at[k]);
    }
    store(act, i);
    if (F)
        store(act + H, f);
    store(act + (F + 1) * H, g);
    store(act + (F + 2) * H, o);
    store(c_after + p.state, c);
    store(after + p.state, h);
    store(next, p.state, h);
}

// c' and h'; the gates, in act. 60 bytes a unit.
KERNEL_BOUNDS(cell_lstm_forward, kBlock, 4, float *act, const float *rec, const float *bias,
              const float *before, float *c_after, float *after, uint16_t *next, int B, int H,
              int cell, int format, int wide)
{
    const operand to = {nullptr, next, format};
    if (wide)
        lstm_step<4>(act, rec, bias, before, c_after, after, to, B, H, cell);
    else
        lstm_step<1>(act, rec, bias, before, c_after, after, to, B, H, cell);
}

template <int W>
DEVICE void lstm_backstep(float *act, const float *before, const float *c_after, const float *dy,
                          const float *later, const float *dc_later, float *dc, const operand &next,
                          int B, int H, int cell)
{
    const place p = placed<W>(B, H);
    if (!p.inside)
        return;
    const int F = cell == LSTM;
    const int64_t row = (int64_t)p.lane * (3 + F) * H + p.unit;
    act += row;
    values<W> i = load<W>(act), f = load<W>(act + F * H);
    values<W> g = load<W>(act + (F + 1) * H), o = load<W>(act + (F + 2) * H);
    values<W> c0 = load<W>(before + p.state), c = load<W>(c_after + p.state);
    values<W> dh = load<W>(dy + p.state) + load_or_zero<W>(later, p.state);
    values<W> d = load_or_zero<W>(dc_later, p.state);
    for (int k = 0; k < W; k++) {
        if (!F)
            f.at[k] = cell == LSTM_COUPLED ? 1 - i.at[k] : 1;
        lstm_backward(i.at[k], f.at[k], g.at[k], o.at[k], c0.at[k], c.at[k], dh.at[k], d.at[k]);
        if (cell == LSTM_COUPLED)
            i.at[k] -= f.at[k];
    }
    store(act, i);
    store(act + (F + 1) * H, g);
    store(act + (F + 2) * H, o);
    store(dc + p.state, d);
    store(next, row, i);
    store(next, row + (F + 1) * H, g);
    store(next, row + (F + 2) * H, o);
    if (F) {
        store(act + H, f);
        store(next, row + H, f);
    }
}

// The gradient of the sums, in act, and of c, in dc, which may be where dc_later is. 56 bytes a
// unit.
KERNEL_BOUNDS(cell_lstm_backward, kBlock, 4, float *act, const float *before, const float *c_after,
              const float *dy, const float *later, const float *dc_later, float *dc, uint16_t *next,
              int B, int H, int cell, int format, int wide)
{
    const operand to = {nullptr, next, format};
    if (wide)
        lstm_backstep<4>(act, before, c_after, dy, later, dc_later, dc, to, B, H, cell);
    else
        lstm_backstep<1>(act, before, c_after, dy, later, dc_later, dc, to, B, H, cell);
}

// The LSTM with peepholes: [3, H], of i, f and o.
template <int W>
DEVICE void peephole_step(float *act, const float *rec, const float *bias, const float *peephole,
                          const float *before, float *c_after, float *after, const operand &next,
                          int B, int H)
{
    const place p = placed<W>(B, H);
    if (!p.inside)
        return;
    const int64_t row = (int64_t)p.lane * 4 * H + p.unit;
    act += row;
    rec += row;
    peephole += p.unit;
    values<W> i = gate_sums<W>(act, rec, bias, p, 0, H), f = gate_sums<W>(act, rec, bias, p, 1, H);
    values<W> g = gate_sums<W>(act, rec, bias, p, 2, H), o = gate_sums<W>(act, rec, bias, p, 3, H);
    values<W> pi = load<W>(peephole), pf = load<W>(peephole + H), po = load<W>(peephole + 2 * H);
    values<W> c0 = load<W>(before + p.state), c, h;
    for (int k = 0; k < W; k++) {
        i.at[k] = sigmoid(i.at[k] + pi.at[k] * c0.at[k]);
        f.at[k] = sigmoid(f.at[k] + pf.at[k] * c0.at[k]);
        g.at[k] = tanh(g.at[k]);
        c.at[k] = f.at[k] * c0.at[k] + i.at[k] * g.at[k];
        o.at[k] = sigmoid(o.at[k] + po.at[k] * c.at[k]);
        h.at[k] = o.at[k] * tanh(c.at[k]);
    }
    store(act, i);
    store(act + H, f);
    store(act + 2 * H, g);
    store(act + 3 * H, o);
    store(c_after + p.state, c);
    store(after + p.state, h);
    store(next, p.state, h);
}

// c' and h'; the gates, in act. 60 bytes a unit.
KERNEL_BOUNDS(cell_peephole_forward, kBlock, 4, float *act, const float *rec, const float *bias,
              const float *peephole, const float *before, float *c_after, float *after,
              uint16_t *next, int B, int H, int format, int wide)
{
    const operand to = {nullptr, next, format};
    if (wide)
        peephole_step<4>(act, rec, bias, peephole, before, c_after, after, to, B, H);
    else
        peephole_step<1>(act, rec, bias, peephole, before, c_after, after, to, B, H);
}

template <int W>
DEVICE void peephole_backstep(float *act, const float *peephole, const float *before,
                              const float *c_after, const float *dy, const float *later,
                              const float *dc_later, float *dc, const operand &next, int B, int H)
{
    const place p = placed<W>(B, H);
    if (!p.inside)
        return;
    const int64_t row = (int64_t)p.lane * 4 * H + p.unit;
    act += row;
    peephole += p.unit;
    values<W> i = load<W>(act), f = load<W>(act + H);
    values<W> g = load<W>(act + 2 * H), o = load<W>(act + 3 * H);
    values<W> pi = load<W>(peephole), pf = load<W>(peephole + H), po = load<W>(peephole + 2 * H);
    values<W> c0 = load<W>(before + p.state), c = load<W>(c_after + p.state);
    values<W> dh = load<W>(dy + p.state) + load_or_zero<W>(later, p.state);
    values<W> d = load_or_zero<W>(dc_later, p.state);
    for (int k = 0; k < W; k++) {
        const float gi = i.at[k], gf = f.at[k], gg = g.at[k], go = o.at[k], tc = tanh(c.at[k]);
        o.at[k] = dh.at[k] * tc * go * (1 - go);
        const float all = d.at[k] + dh.at[k] * go * (1 - tc * tc) + po.at[k] * o.at[k];
        i.at[k] = all * gg * gi * (1 - gi);
        f.at[k] = all * c0.at[k] * gf * (1 - gf);
        g.at[k] = all * gi * (1 - gg * gg);
        d.at[k] = all * gf + pi.at[k] * i.at[k] + pf.at[k] * f.at[k];
    }
    store(act, i);
    store(act + H, f);
    store(act + 2 * H, g);
    store(act + 3 * H, o);
    store(dc + p.state, d);
    store(next, row, i);
    store(next, row + H, f);
    store(next, row + 2 * H, g);
    store(next, row + 3 * H, o);
}

// As cell_lstm_backward. 56 bytes a unit.
KERNEL_BOUNDS(cell_peephole_backward, kBlock, 4, float *act, const float *peephole,
              const float *before, const float *c_after, const float *dy, const float *later,
              const float *dc_later, float *dc, uint16_t *next, int B, int H, int format, int wide)
{
    const operand to = {nullptr, next, format};
    if (wide)
        peephole_backstep<4>(act, peephole, before, c_after, dy, later, dc_later, dc, to, B, H);
    else
        peephole_backstep<1>(act, peephole, before, c_after, dy, later, dc_later, dc, to, B, H);
}

// The gradient of the peepholes, [3, H], from act, the gradients of the sums of all steps, [rows,
// 4*H], and cell, the states from before the first step on: i and f saw that before their step, o
// that after it. y of the grid is the peephole; sums are made as sums::column_sum does. 24 bytes a
// unit and row.
KERNEL(cell_peephole_sums, float *gradient, const float *act, const float *cell, int rows, int B,
       int H)
{
    const int c = threadIdx.x % sums::kColumns, part = threadIdx.x / sums::kColumns;
    const int unit = blockIdx.x * sums::kColumns + c, gate = blockIdx.y == 2 ? 3 : blockIdx.y;
    const int64_t seen = blockIdx.y == 2 ? B : 0;
    float *between = (float *)shared_memory(), sum = 0;
    if (unit < H)
        for (int r = part; r < rows; r += sums::kParts)
            sum += act[(int64_t)r * 4 * H + gate * H + unit] * cell[(r + seen) * H + unit];
    between[threadIdx.x] = sum;
    __syncthreads();
    if (part == 0 && unit < H) {
        for (int i = 1; i < sums::kParts; i++)
            sum += between[i * sums::kColumns + c];
        gradient[blockIdx.y * H + unit] = sum;
    }
}

} // namespace cells
