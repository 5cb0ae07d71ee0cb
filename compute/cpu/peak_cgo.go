package cpu

/*
#include "peak.h"
*/
import "C"

// multiply does nothing but products, on all threads, and returns its floating-point operations:
// a multiple of rounds.
func (n *native) multiply(rounds int) float64 {
	return float64(C.rondo_burn_all(n.kernels, n.team, C.long(rounds)))
}
