// Package tidy holds the project to its own rules, as tests: which package may import which (the
// table of rooms), and the limits of style that a linter cannot state. It has no code that
// anything else uses, reads the tree as it lies on disk, and imports nothing of ours.
//
// A rule that is in the way is changed here, in the open, or gets an exception with its reason;
// it is not worked around.
package tidy
