// Package task is the list of task names. Each task is a package in a folder here and implements
// train.Task. The list does not import them, so that programs that do not train can read it. It may
// import nothing of this module.
package task

// LM is the language model of task/lm, the default. Checkpoints without a task name are its.
const LM = "lm"

// Names returns the valid names for --task, a JobSpec and a checkpoint's manifest.
func Names() []string {
	return []string{
		LM,
	}
}
