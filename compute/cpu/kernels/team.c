//go:build cgo

// A pool of threads. A thread that waits for a call or at a barrier first spins, because the others
// usually arrive within a microsecond. Then it yields between looks, because another thread of the
// team may need its processor. At last it sleeps.

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <time.h>

#include "team.h"

// SPINS: looks before the first yield, about ten microseconds in all. YIELD_NS: nanoseconds of
// yielding before a thread sleeps.
enum { SPINS = 400, YIELD_NS = 100000 };

// A counter to wait on. `value` only grows.
struct turnstile {
    atomic_uint value, asleep;
    pthread_mutex_t mutex;
    pthread_cond_t moved;
};

struct team {
    int count;
    pthread_t *threads;
    struct member *members;
    void (*work)(void *with, const struct member *m); // null ends the threads
    void *with;
    struct turnstile calls, meetings; // calls begun; barriers passed
    atomic_uint arrived;              // threads at the current barrier
};

static void turnstile_init(struct turnstile *t)
{
    pthread_mutex_init(&t->mutex, 0);
    pthread_cond_init(&t->moved, 0);
}

static void turnstile_destroy(struct turnstile *t)
{
    pthread_mutex_destroy(&t->mutex);
    pthread_cond_destroy(&t->moved);
}

static inline void pause_a_little(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static void turnstile_pass(struct turnstile *t)
{
    // These two operations and the sleeper's two are sequentially consistent: either the sleeper
    // sees the new value, or this thread sees that it sleeps.
    atomic_fetch_add(&t->value, 1);
    if (!atomic_load(&t->asleep))
        return;
    pthread_mutex_lock(&t->mutex);
    pthread_mutex_unlock(&t->mutex); // a sleeper that has not seen the value is asleep by now
    pthread_cond_broadcast(&t->moved);
}

static int moved(const struct turnstile *t, unsigned seen)
{
    return atomic_load_explicit(&t->value, memory_order_acquire) != seen;
}

static long now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000L + t.tv_nsec;
}

// Waits until the value is no longer `seen`.
static void turnstile_wait(struct turnstile *t, unsigned seen)
{
    for (int i = 0; i < SPINS; i++, pause_a_little())
        if (moved(t, seen))
            return;
    for (long since = now(); now() - since < YIELD_NS; sched_yield())
        if (moved(t, seen))
            return;
    pthread_mutex_lock(&t->mutex);
    atomic_fetch_add(&t->asleep, 1);
    while (atomic_load(&t->value) == seen)
        pthread_cond_wait(&t->moved, &t->mutex);
    atomic_fetch_sub(&t->asleep, 1);
    pthread_mutex_unlock(&t->mutex);
}

void rondo_team_meet(const struct member *m)
{
    if (m->count == 1)
        return;
    struct team *t = m->team;
    unsigned seen = atomic_load_explicit(&t->meetings.value, memory_order_relaxed);
    if (atomic_fetch_add(&t->arrived, 1) + 1 == (unsigned)t->count) {
        atomic_store_explicit(&t->arrived, 0, memory_order_relaxed);
        turnstile_pass(&t->meetings);
        return;
    }
    turnstile_wait(&t->meetings, seen);
}

static void *serve(void *arg)
{
    const struct member *m = arg;
    struct team *t = m->team;
    for (unsigned seen = 0;; seen++) {
        turnstile_wait(&t->calls, seen);
        if (!t->work)
            return 0;
        t->work(t->with, m);
        rondo_team_meet(m);
    }
}

void rondo_team_run(struct team *t, void (*work)(void *with, const struct member *m),
                    void *with)
{
    if (!t || t->count == 1) {
        struct member alone = {t, 0, 1};
        work(with, &alone);
        return;
    }
    t->work = work;
    t->with = with;
    turnstile_pass(&t->calls);
    work(with, &t->members[0]);
    rondo_team_meet(&t->members[0]);
}

// Ends the `started` threads after the first, and frees the team.
static void dismiss(struct team *t, int started)
{
    t->work = 0;
    turnstile_pass(&t->calls);
    for (int i = 1; i <= started; i++)
        pthread_join(t->threads[i], 0);
    turnstile_destroy(&t->calls);
    turnstile_destroy(&t->meetings);
    free(t->threads);
    free(t->members);
    free(t);
}

struct team *rondo_team_new(int threads)
{
    struct team *t = calloc(1, sizeof *t);
    if (!t)
        return 0;
    t->count = threads;
    t->threads = calloc(threads, sizeof *t->threads);
    t->members = calloc(threads, sizeof *t->members);
    turnstile_init(&t->calls);
    turnstile_init(&t->meetings);
    // Go's threads handle the process's signals. A fault's signal stays on the thread that faults.
    sigset_t blocked, before;
    sigfillset(&blocked);
    int faults[] = {SIGILL, SIGSEGV, SIGBUS, SIGFPE, SIGTRAP};
    for (unsigned i = 0; i < sizeof faults / sizeof *faults; i++)
        sigdelset(&blocked, faults[i]);
    pthread_sigmask(SIG_BLOCK, &blocked, &before);
    int started = 0;
    for (int i = 0; t->threads && t->members && i < threads; i++) {
        t->members[i] = (struct member){t, i, threads};
        if (i > 0 && pthread_create(&t->threads[i], 0, serve, &t->members[i]))
            break;
        started = i;
    }
    pthread_sigmask(SIG_SETMASK, &before, 0);
    if (started + 1 == threads && t->threads && t->members)
        return t;
    dismiss(t, started);
    return 0;
}

void rondo_team_free(struct team *t)
{
    if (t)
        dismiss(t, t->count - 1);
}

int rondo_team_size(const struct team *t) { return t ? t->count : 1; }
