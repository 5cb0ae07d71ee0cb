package jobspec

import (
	"google.golang.org/protobuf/reflect/protoreflect"

	"rondo/task"
)

// tasksOf returns the tasks that read a field; nil: all.
func tasksOf(field protoreflect.Name) []string {
	switch field {
	case "bptt":
		return []string{task.LM, task.Fill, task.Regress, task.Reservoir, task.NGram,
			task.HMM, task.MLP}
	case "sampling":
		return []string{task.LM, task.Fill, task.Regress}
	case "activation_l2", "temporal_l2", "bptt_random":
		return []string{task.LM}
	case "dropout_words":
		return []string{task.LM, task.Classify, task.Tag, task.Fill}
	case "weight_drop", "dropout_output", "skip_through_time":
		return []string{task.LM, task.Classify, task.Tag, task.Fill, task.Regress}
	case "recompute", "omega":
		return []string{task.LM, task.Regress}
	case "vocabulary_size":
		return append(tasksOf("text_field"), task.Classify)
	case "max_tokens", "eos", "text_field", "shuffle_documents":
		return []string{task.LM, task.Fill, task.NGram, task.HMM, task.MLP}
	case "blanks":
		return []string{task.Fill}
	case "order":
		return []string{task.NGram, task.MLP}
	case "smoothing":
		return []string{task.NGram}
	case "states", "pseudo_count":
		return []string{task.HMM}
	case "tie_weights", "adaptive_softmax", "sparse_rows", "i_know":
		return []string{task.LM}
	case "sample_every", "sample_prefix", "sample_tokens", "sample_temperature":
		return []string{task.LM, task.NGram, task.HMM, task.MLP}
	case "tree", "tree_cell":
		return []string{task.Tree}
	case "hops", "tying", "position_encoding", "temporal_encoding", "hard_attention":
		return []string{task.Answer}
	case "memory_width", "heads", "shift", "controller":
		return []string{task.Turing}
	case "memory_rows":
		return []string{task.Answer, task.Turing}
	case "sequences":
		return []string{task.Regress}
	case "target":
		return []string{task.Regress, task.Reservoir}
	case "spectral_radius", "input_scale", "ridge", "washout":
		return []string{task.Reservoir}
	case "hidden":
		return append(task.Networks(), task.Reservoir)
	case "tokenizer", "normalize", "min_frequency":
		return append(tasksOf("embed"), task.NGram, task.HMM, task.Answer)
	case "embed":
		return append(tasksOf("dropout_input"), task.MLP, task.Tree)
	case "dropout_input", "label_smoothing":
		return []string{task.LM, task.Classify, task.Tag, task.Fill, task.Translate,
			task.Describe}
	case "bidirectional", "hidden_backward":
		return []string{task.LM, task.Classify, task.Tag, task.Fill, task.Translate}
	case "max_length", "max_examples":
		return []string{task.Classify, task.Tag, task.Translate, task.Describe, task.Answer,
			task.Tree}
	case "teacher_forcing", "teacher_forcing_steps", "teacher_forcing_choice":
		return []string{task.Translate, task.Describe}
	case "vectors", "vector_as", "ends":
		return []string{task.Describe}
	case "decoder_context", "attention", "feedback":
		return []string{task.Translate}
	case "pool":
		return []string{task.Classify}
	}
	return networksOf(field)
}

// networksOf is tasksOf for the fields of networks and of how they are trained.
func networksOf(field protoreflect.Name) []string {
	switch field {
	case "leak":
		return append(task.Layered(), task.Reservoir)
	case "cell", "dropout", "dropout_locked", "layer_norm", "skip_connections", "deep_input",
		"deep_transition", "deep_output", "periods", "forget_bias", "precision":
		return task.Layered()
	case "layers":
		return append(task.Layered(), task.MLP)
	case "init":
		return append(task.Layered(), task.MLP, task.Tree)
	case "average", "optimizer", "lr", "lr_schedule", "warmup_steps", "lr_decay", "lr_step_every",
		"lr_hold",
		"lr_patience", "lr_min", "momentum", "beta1", "beta2", "rho", "epsilon", "weight_decay",
		"clip", "clip_by", "clip_scope", "sync_every", "outer_optimizer", "outer_lr",
		"outer_momentum", "shard_optimizer", "shard_copies", "wire", "error_feedback", "compress",
		"compress_after", "nonfinite":
		return task.Networks()
	}
	return nil
}
