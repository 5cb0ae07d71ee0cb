// How fast a team can multiply at most.

#ifndef RONDO_PEAK_H
#define RONDO_PEAK_H

#include "kernels.h"

// Runs the table's `burn` on every thread of the team (null: the caller alone) at once, and returns
// the operations of all.
double rondo_burn_all(const struct kernels *k, struct team *t, long rounds);

#endif
