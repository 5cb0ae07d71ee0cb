package corpus

import "unsafe"

// prefetch asks for the items, of 1<<shift bytes each, whose indices begin at index. It waits for
// none of them, so that many reads of memory are under way at a time.
//
//go:noescape
func prefetch(items unsafe.Pointer, shift int, index *int32, count int)
