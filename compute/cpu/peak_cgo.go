package cpu

/*
#include "kernels/peak.h"
*/
import "C"

// multiply runs products only; see backend.
func (n *native) multiply(rounds int) float64 {
	return float64(C.rondo_burn_all(n.kernels, n.team, C.long(rounds)))
}
