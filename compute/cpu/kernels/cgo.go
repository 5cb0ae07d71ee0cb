package kernels

/*
#cgo CFLAGS: -std=c11 -D_GNU_SOURCE -O3 -Wall -pthread
#cgo LDFLAGS: -lm
*/
import "C"
