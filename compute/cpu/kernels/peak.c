//go:build cgo

#include "peak.h"

struct fire {
    const struct kernels *k;
    long rounds;
    double operations; // of all threads
};

static void burn_one(void *with, const struct member *m)
{
    struct fire *f = with;
    double operations = f->k->burn(f->rounds);
    if (m->index == 0)
        f->operations = operations * m->count;
}

double rondo_burn_all(const struct kernels *k, struct team *t, long rounds)
{
    struct fire f = {.k = k, .rounds = rounds};
    rondo_team_run(t, burn_one, &f);
    return f.operations;
}
