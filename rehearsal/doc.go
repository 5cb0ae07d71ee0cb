// Package rehearsal makes faults to order: a process that kills or stops itself at a given step, a
// link that loses a message, a bit that flips, a disk that is full. Users order them with --inject
// to see what a job does then; tests order them the same way.
//
// An order is one or more rules, separated by semicolons:
//
//	kill rank=1 step=20 phase=all-gather; delay rank=* for=50ms phase=load chance=0.1 times=0
//
//	kill          SIGKILL to itself
//	stop          SIGSTOP to itself; for=5s: until a process left behind continues it, else
//	              until somebody does
//	delay         for=200ms: wait before the phase, or before a message of it
//	drop          lose a message of the ring
//	duplicate     send a message of the ring twice
//	corrupt       flip a bit: of a message if phase is one of the ring's, else of the parameters
//	nan           make a gradient NaN
//	disk-full     a write of a checkpoint fails: no space left on device
//	fsync-error   making a checkpoint's file durable fails: input/output error
//	io-error      any operation of a checkpoint fails: input/output error
//
//	rank=N|*      the rank in the ring at that moment; needed
//	step=N|A-B    number of the step being done, from 1; else any. A disk fault means the step
//	              whose checkpoint is written
//	phase=P       load, forward, backward, carry, reduce-scatter, all-gather, update, checkpoint.
//	              Else kill, stop and delay mean load; drop and duplicate a message of any of the
//	              ring's phases, carry, reduce-scatter and all-gather; and corrupt the parameters,
//	              after the update
//	pass=N        with kill, stop and delay in load, forward and backward: in the Nth of the
//	              step's passes, of which --accumulate and lane groups make several on a worker;
//	              else in the first
//	times=K       how often in the whole job, 1 unless given; 0: whenever it matches, of which
//	              each process tells the first, unless chance= is given
//	chance=P      each match counts with this probability, drawn from (seed, rank, step, phase,
//	              number of the message) and the ring's generation, so that a step that is
//	              repeated is drawn anew, and the same history draws the same
//	seed=N        of chance; 1 unless given
//
// While a ring forms its messages are of no step, and no rule matches.
//
// A fault changes the ring, and the next ring repeats the step with another process at the same
// rank. So what counts how often a rule was carried out must be the job's, not a process's: see
// Config.Spend. Only rules with times=0 go without.
//
// The package does not know what the faults hit. It says when; the trainer, the ring's links and
// the checkpoint's store ask it through hooks of their own. It imports nothing of ours.
package rehearsal
