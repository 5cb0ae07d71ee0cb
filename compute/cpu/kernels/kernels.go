// Package kernels holds the C code of package cpu, which calls it. It has no Go code and imports
// nothing: it is a package of its own so that the C code, which takes the compiler a minute, is
// compiled once for the commands, their tests and those of package cpu.
//
// A build without cgo leaves the C code out. Go compiles package cpu anew if this package's objects
// change, not if a header does: a header's constant that only Go reads needs go clean -cache.
package kernels
