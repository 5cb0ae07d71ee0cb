// Package procgroup starts programs in their own process groups, so that a Ctrl-C at the terminal
// does not reach them, and signals a group as a whole. On systems without groups it starts and ends
// single processes. It imports nothing of this module.
package procgroup
