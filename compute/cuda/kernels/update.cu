// The optimizers of package compute, one pass over parameters, gradients and slots: 12 bytes a
// parameter for one without slots, 20 with one and 28 with two. The arithmetic is that of the CPU's
// reference, in its order, and every product is rounded before it is added.
#include "device.cuh"

enum rule { kSGD, kMomentum, kNesterov, kAdam, kAdamW, kRMSProp, kAdagrad };

constexpr int kBlock = 256; // flatThreads

struct constants {
    float lr, momentum, beta1, beta2, rho, epsilon, decay;
    float size, root; // Adam's bias correction: lr/(1-beta1^step), 1/sqrt(1-beta2^step)
};

// The product, which the compiler may not fuse with an addition.
DEVICE float times(float a, float b) { return __fmul_rn(a, b); }

// New values of a parameter and its slots, from its gradient.
template <rule R> DEVICE void step(const constants &u, float &p, float g, float &s1, float &s2)
{
    if (R == kAdamW)
        p = times(p, 1 - times(u.lr, u.decay));
    else
        g += times(u.decay, p);
    switch (R) {
    case kSGD:
        p -= times(u.lr, g);
        return;
    case kMomentum:
        s1 = times(u.momentum, s1) + g;
        p -= times(u.lr, s1);
        return;
    case kNesterov:
        s1 = times(u.momentum, s1) + g;
        p -= times(u.lr, g + times(u.momentum, s1));
        return;
    case kAdam:
    case kAdamW:
        s1 = times(u.beta1, s1) + times(1 - u.beta1, g);
        s2 = times(u.beta2, s2) + times(times(1 - u.beta2, g), g);
        p -= times(u.size, s1) / (times(sqrtf(s2), u.root) + u.epsilon);
        return;
    case kRMSProp:
        s1 = times(u.rho, s1) + times(times(1 - u.rho, g), g);
        break;
    case kAdagrad:
        s1 += times(g, g);
        break;
    }
    p -= times(u.lr, g) / (sqrtf(s1) + u.epsilon);
}

template <rule R>
DEVICE void update(const constants u, int64_t n, float *p, const float *g, float *s1, float *s2)
{
    constexpr int slots = R == kSGD ? 0 : R == kAdam || R == kAdamW ? 2 : 1;
    const int64_t thread = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    const int64_t threads = (int64_t)gridDim.x * blockDim.x;
    uintptr_t places = (uintptr_t)p | (uintptr_t)g;
    if (slots > 0)
        places |= (uintptr_t)s1;
    if (slots > 1)
        places |= (uintptr_t)s2;
    const int64_t fours = places % 16 == 0 ? n / 4 : 0;
    const float4 none = make_float4(0, 0, 0, 0);
    for (int64_t i = thread; i < fours; i += threads) {
        float4 v = ((const float4 *)p)[i], d = ((const float4 *)g)[i];
        float4 a = slots > 0 ? ((const float4 *)s1)[i] : none;
        float4 b = slots > 1 ? ((const float4 *)s2)[i] : none;
        step<R>(u, v.x, d.x, a.x, b.x);
        step<R>(u, v.y, d.y, a.y, b.y);
        step<R>(u, v.z, d.z, a.z, b.z);
        step<R>(u, v.w, d.w, a.w, b.w);
        ((float4 *)p)[i] = v;
        if (slots > 0)
            ((float4 *)s1)[i] = a;
        if (slots > 1)
            ((float4 *)s2)[i] = b;
    }
    for (int64_t i = 4 * fours + thread; i < n; i += threads) {
        float a = slots > 0 ? s1[i] : 0, b = slots > 1 ? s2[i] : 0;
        step<R>(u, p[i], g[i], a, b);
        if (slots > 0)
            s1[i] = a;
        if (slots > 1)
            s2[i] = b;
    }
}

// One kernel for each, of the same parameters; slots that an optimizer has not are null. The
// constants are in memory, where each replay of a graph finds others. Nothing is done where norm,
// which is the gradient's, or null, is not finite.
#define UPDATE(name, rule)                                                                        \
    KERNEL_BOUNDS(name, kBlock, 4, int64_t n, float *p, const float *g, float *s1, float *s2,     \
                  const constants *u, const double *norm)                                         \
    {                                                                                             \
        if (!norm || is_finite(*norm))                                                            \
            update<rule>(*u, n, p, g, s1, s2);                                                    \
    }

UPDATE(update_sgd, kSGD)
UPDATE(update_momentum, kMomentum)
UPDATE(update_nesterov, kNesterov)
UPDATE(update_adam, kAdam)
UPDATE(update_adamw, kAdamW)
UPDATE(update_rmsprop, kRMSProp)
UPDATE(update_adagrad, kAdagrad)
