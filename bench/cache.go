package bench

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// LargestCache returns the size of the processor's largest cache in bytes, from Linux; 0: unknown.
func LargestCache() int64 {
	sizes, err := filepath.Glob("/sys/devices/system/cpu/cpu0/cache/index*/size")
	if err != nil {
		return 0
	}
	var largest int64
	for _, path := range sizes {
		text, err := os.ReadFile(path)
		if err != nil {
			continue
		}
		kibibytes, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(string(text)), "K"),
			10, 64)
		if err == nil {
			largest = max(largest, kibibytes<<10)
		}
	}
	return largest
}
