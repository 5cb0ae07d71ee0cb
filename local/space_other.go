//go:build !(linux || darwin)

package local

import "math"

// freeBytes does not know: an etcd that finds too little says so by itself.
func freeBytes(string) (uint64, error) { return math.MaxUint64, nil }
