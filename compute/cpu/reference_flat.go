package cpu

import "rondo/compute"

// refEmbed copies rows of the table.
func refEmbed(y, table []float32, ids []int32) {
	width := len(y) / len(ids)
	for i, id := range ids {
		copy(y[i*width:(i+1)*width], table[int(id)*width:])
	}
}

// refEmbedBackward adds dy's rows to dtable's.
func refEmbedBackward(dtable, dy []float32, ids []int32) {
	width := len(dy) / len(ids)
	for i, id := range ids {
		refAdd(dtable[int(id)*width:(int(id)+1)*width], dy[i*width:(i+1)*width])
	}
}

// refDropout is Dropout on x: [T, len(keys), h].
func refDropout(y, x []float32, h int, p float32, keys []uint64) {
	scale := 1 / (1 - p)
	for row := 0; row*h < len(x); row++ {
		key, first := keys[row%len(keys)], row/len(keys)*h
		for j := range h {
			i := row*h + j
			if compute.DropoutKeep(key, first+j, p) {
				y[i] = x[i] * scale
			} else {
				y[i] = 0
			}
		}
	}
}

// refCopyRows is Device.CopyRows.
func refCopyRows(dst, src compute.Columns, n, width int, ids []int32, add bool) {
	for i := range n {
		to, id := dst.X[i*dst.Stride+dst.At:][:width], i
		if ids != nil {
			id = int(ids[i])
		}
		switch {
		case id < 0 && !add:
			clear(to)
		case id >= 0 && add:
			refAdd(to, src.X[id*src.Stride+src.At:][:width])
		case id >= 0:
			copy(to, src.X[id*src.Stride+src.At:])
		}
	}
}

// refPool is Device.Pool.
func refPool(p compute.Pooling, y, x []float32, lengths []int32) {
	h := len(y) / len(lengths)
	for b, length := range lengths {
		to := y[b*h:][:h]
		clear(to)
		for t := range int(length) {
			from := x[t*len(y)+b*h:][:h]
			switch {
			case t == 0:
				copy(to, from)
			case p == compute.MaxPool:
				refLargest(to, from)
			default:
				refAdd(to, from)
			}
		}
		if p == compute.MeanPool && length > 0 {
			refScale(to, 1/float32(length))
		}
	}
}

// refLargest sets y to the larger of each element, or NaN if one is.
func refLargest(y, x []float32) {
	for i, v := range x {
		if y[i] == y[i] && !(y[i] >= v) {
			y[i] = v
		}
	}
}

// refPoolBackward is Device.PoolBackward.
func refPoolBackward(p compute.Pooling, dx, dy, x, y []float32, lengths []int32) {
	h := len(dy) / len(lengths)
	clear(dx)
	for b, length := range lengths {
		for j := b * h; j < (b+1)*h; j++ {
			for t := range int(length) {
				at := t*len(dy) + j
				if p == compute.MeanPool {
					dx[at] = dy[j] * (1 / float32(length))
				} else if !(x[at] < y[j]) {
					dx[at] = dy[j]
					break
				}
			}
		}
	}
}
