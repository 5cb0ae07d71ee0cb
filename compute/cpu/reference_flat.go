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
