//go:build cuda

package cuda

import "unsafe"

// stage lets fill write to host memory and enqueues its copy to the scratch, whose address it
// returns: for data that one kernel reads and no later call does. While recording, fill is kept,
// and each Replay calls it again.
func (f *ferry) stage(bytes int, fill func(host []byte)) unsafe.Pointer {
	q := f.memory.queue
	if q.record != nil {
		return q.record.put(bytes, fill)
	}
	const doing = "uploading"
	to := f.memory.scratch(bytes)
	if bytes > ferryBytes { // more than one part: filled in memory of Go's first
		words := make([]float32, (bytes+3)/4)
		fill(bytesOf(words)[:bytes])
		f.upload(to, words)
		return to
	}
	s := f.next(doing)
	fill(s.host[:bytes:bytes])
	q.check(doing, q.stream.Upload(to, s.host[:bytes]))
	s.mark(q, doing)
	return to
}

// int32s views host memory as the kernels' type.
func int32s(host []byte) []int32 {
	return unsafe.Slice((*int32)(unsafe.Pointer(unsafe.SliceData(host))), len(host)/4)
}

// A grouping is rows by the id that each has, as the kernel flat_embed_backward reads it: how many
// ids there are; each of them; where its rows begin in order, and where the last one's end; and the
// rows, ascending for each id. Ids are in the order of their first rows.
type grouping struct{ count, ids, starts, order unsafe.Pointer }

// groupedLen is how many int32s the grouping of n rows takes.
func groupedLen(n int) int { return 1 + n + (n + 1) + n }

// grouped is where the parts of a grouping of n rows are.
func grouped(p unsafe.Pointer, n int) grouping {
	return grouping{p, unsafe.Add(p, 4), unsafe.Add(p, 4*(1+n)), unsafe.Add(p, 4*(2+2*n))}
}

// group makes a grouping of rows with these ids. next has a zero for every possible id, and has
// them again afterwards.
func group(to, ids, next []int32) {
	n := len(ids)
	distinct, starts, order := to[1:1+n], to[1+n:2+2*n], to[2+2*n:2+3*n]
	count := int32(0)
	for _, id := range ids {
		if next[id] == 0 {
			distinct[count] = id
			count++
		}
		next[id]++
	}
	end := int32(0)
	for g, id := range distinct[:count] {
		starts[g] = end
		end += next[id]
		next[id] = starts[g]
	}
	starts[count] = end
	for i, id := range ids {
		order[next[id]] = int32(i)
		next[id]++
	}
	for _, id := range distinct[:count] {
		next[id] = 0
	}
	to[0] = count
}
