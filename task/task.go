// Package task is the list of tasks by name. Each is a package of its own in a folder here, which
// implements train.Task. The list imports none of them: programs that train nothing read it, too.
package task

// LM is the language model of task/lm, the default. Checkpoints of versions that had no name of a
// task are of it.
const LM = "lm"

// Names are what --task, a JobSpec and a checkpoint's manifest may say.
func Names() []string {
	return []string{
		LM,
	}
}
