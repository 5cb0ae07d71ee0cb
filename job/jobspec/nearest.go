package jobspec

// Nearest returns the name that differs from a mistyped one by the fewest inserted, deleted or
// replaced bytes, if these are at most two and fewer than the mistyped name has; otherwise "".
func Nearest(wrong string, names []string) (nearest string) {
	least := min(3, len(wrong))
	for _, name := range names {
		if n := edits(wrong, name); n < least {
			nearest, least = name, n
		}
	}
	return nearest
}

// edits is the Levenshtein distance of two strings, in bytes.
func edits(a, b string) int {
	row := make([]int, len(b)+1) // distances of a[:i] from b[:0], b[:1] and so on
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			replaced := diagonal
			if a[i] != b[j] {
				replaced++
			}
			diagonal = row[j+1]
			row[j+1] = min(replaced, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}
