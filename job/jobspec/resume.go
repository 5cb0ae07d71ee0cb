package jobspec

import "fmt"

// ParseResumeStep reads the value of --resume when it is neither auto nor never.
func ParseResumeStep(text string) (int64, error) {
	var step int64
	if _, err := fmt.Sscanf(text, "%d", &step); err != nil || step < 1 ||
		fmt.Sprint(step) != text {
		return 0, usagef("--resume %q is not auto, never or the step of a checkpoint", text)
	}
	return step, nil
}
