// Package procgroup starts programs in process groups of their own, so that a Ctrl-C at the
// terminal does not reach them, and signals such a group as a whole. Where a system has no groups,
// it starts and ends the one process. It imports nothing of ours.
package procgroup
