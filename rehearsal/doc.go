// Package rehearsal injects faults on request: a process that kills or stops itself at a given
// step, a link that loses a message, a bit that flips, a full disk. Users request faults with
// --inject to see how a job behaves; tests do the same.
//
// A request is one or more rules, separated by semicolons:
//
//	kill rank=1 step=20 phase=all-gather; delay rank=* for=50ms phase=load chance=0.1 times=0
//
//	kill          SIGKILL to itself
//	stop          SIGSTOP to itself. With for=5s a helper process continues it; otherwise it halts
//	              until it is continued from outside
//	delay         for=200ms: wait before the phase, or before a message of it
//	drop          lose a message of the ring
//	duplicate     send a message of the ring twice
//	corrupt       flip a bit of a message if phase is one of the ring's, else of the parameters
//	nan           make a gradient NaN
//	disk-full     a write of a checkpoint fails: no space left on device
//	fsync-error   syncing a checkpoint's file fails: input/output error
//	io-error      any operation of a checkpoint fails: input/output error
//
//	rank=N|*      the rank in the ring at that moment; required
//	step=N|A-B    number of the current step, from 1; default: any. For a disk fault, the step of
//	              the checkpoint
//	phase=P       load, forward, backward, carry, reduce-scatter, all-gather, update, checkpoint.
//	              Default: load for kill, stop and delay; any of the ring's phases (carry,
//	              reduce-scatter, all-gather) for drop and duplicate; the parameters after the
//	              update for corrupt
//	pass=N        for kill, stop and delay in load, forward and backward: the Nth pass of the step
//	              (--accumulate and lane groups give a worker several passes); default: the first
//	times=K       number of faults in the whole job; default 1. 0: at every match; then each
//	              process logs only the first, unless chance= is given
//	chance=P      each match fires with this probability. It is drawn from (seed, rank, step,
//	              phase, number of the message) and the ring's generation: a repeated step draws
//	              anew, and the same history draws the same
//	seed=N        seed of chance=; default 1
//
// No rule matches while a ring forms, because its messages belong to no step.
//
// After a fault, the next ring repeats the step with another process at the same rank. So the job,
// not a process, must count how often a rule fired: see Config.Spend. Only rules with times=0 do
// without.
//
// The package does not know what the faults hit. It decides when they happen; the trainer, the
// ring's links and the checkpoint store ask it through their own hooks. It imports nothing of this
// module.
package rehearsal
