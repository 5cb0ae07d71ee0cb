// Threads that work on one call together.

#ifndef RONDO_TEAM_H
#define RONDO_TEAM_H

struct team;

// One thread of a team during a call; index 0 is the caller.
struct member {
    struct team *team;
    int index, count;
};

// A team of that many threads, the caller's included; null if the machine has no room for it.
// Each is freed by rondo_team_free, which ends its threads.
struct team *rondo_team_new(int threads);
void rondo_team_free(struct team *t);
int rondo_team_size(const struct team *t);

// Runs work(with, member) on every thread of the team at once, and returns when all have ended.
// A team does one call at a time. A null team is the caller alone.
void rondo_team_run(struct team *t, void (*work)(void *with, const struct member *m),
                    void *with);

// A barrier: returns when every member of the call is here. All see what each wrote before it.
void rondo_team_meet(const struct member *m);

// This member's share of 0..n-1, in multiples of `grain` (but for the end): [*first, *end).
static inline void rondo_share(const struct member *m, long n, long grain, long *first,
                               long *end)
{
    long grains = (n + grain - 1) / grain;
    *first = grains * m->index / m->count * grain;
    *end = grains * (m->index + 1) / m->count * grain;
    if (*end > n)
        *end = n;
    if (*first > n)
        *first = n;
}

#endif
