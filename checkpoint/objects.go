package checkpoint

import (
	"fmt"
	"strconv"
	"strings"
)

// A bucket cannot replace or delete an object on a condition. So the objects of a step's folder
// have names with their writer's claim: manifest-3.json, attempt-3-MARK/model.safetensors. Claims
// 0 and 1 have no number. Readers take the manifest of the highest claim.

const (
	manifestStem = "manifest"
	// attemptPrefix begins the name of a save's sub-folder. Each save has its own, so two writers
	// of one step never write to the same key.
	attemptPrefix = "attempt-"
)

// manifestOf names the manifest of a claim.
func manifestOf(claim int64) string {
	if claim <= 1 {
		return manifestName
	}
	return fmt.Sprintf("%s-%d.json", manifestStem, claim)
}

// manifestClaim is the inverse of manifestOf; claims 0 and 1 are 1.
func manifestClaim(file string) (claim int64, ok bool) {
	claim = 1
	if file != manifestName {
		number := strings.TrimPrefix(strings.TrimSuffix(file, ".json"), manifestStem+"-")
		claim, _ = strconv.ParseInt(number, 10, 64)
	}
	return claim, claim > 0 && claim <= maxClaim && manifestOf(claim) == file
}

// newAttempt names the sub-folder of a save.
func newAttempt(claim int64) string {
	if claim <= 1 {
		return attemptPrefix + newMark()
	}
	return fmt.Sprintf("%s%d-%s", attemptPrefix, claim, newMark())
}

// attemptClaim is the inverse of newAttempt; claims 0 and 1 are 1.
func attemptClaim(name string) (claim int64, ok bool) {
	rest, ok := strings.CutPrefix(name, attemptPrefix)
	number, mark, numbered := strings.Cut(rest, "-")
	if !numbered {
		return 1, ok && isMark(rest)
	}
	claim, err := strconv.ParseInt(number, 10, 64)
	return claim, ok && err == nil && claim > 1 && claim <= maxClaim && isMark(mark)
}

// writerClaim returns the claim of an object's writer, by its path within the step's folder. A
// foreign object counts as the first claim's.
func writerClaim(file string) int64 {
	name, _, _ := strings.Cut(file, "/")
	if claim, ok := manifestClaim(name); ok {
		return claim
	}
	if claim, ok := attemptClaim(name); ok {
		return claim
	}
	return 1
}
