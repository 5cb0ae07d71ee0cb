// AMX on a processor without it, for tests.

#ifndef RONDO_EMULATE_H
#define RONDO_EMULATE_H

// From here on AMX's instructions for bfloat16 do what Intel's manual says, on every thread. What
// the processor would refuse ends the program, and says why.
void emulate_amx(void);

#endif
