// Package kernels holds the C code of package cpu, which calls it. It has no Go code and imports
// nothing: it is a package of its own so that the C code, which takes the compiler a minute, is
// compiled once for the commands, their tests and those of package cpu.
//
// A build without cgo leaves the C code out.
package kernels
