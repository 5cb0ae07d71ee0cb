package model

// Part is a flag that changes a network.
type Part struct{ Flag, Does, Source string }

// Parts returns what networks can have besides their cells: `rondo models` lists it.
func Parts() []Part {
	return []Part{
		{"bidirectional", "reads each example from both ends", "Schuster and Paliwal (1997)"},
		{"skip-connections", "adds a layer's input to its output", "He et al. (2016)"},
		{"layer-norm", "normalises each layer's output", "Ba et al. (2016)"},
		{"deep-input", "tanh layers before the first recurrent layer", "Pascanu et al. (2014)"},
		{"deep-transition", "tanh layers between two steps", "Pascanu et al. (2014)"},
		{"skip-through-time", "each layer reads its output some steps before", "Lin et al. (1996)"},
		{"deep-output", "tanh layers before the output layer", "Pascanu et al. (2014)"},
		{"omega", "keeps the norm of gradients back in time", "Pascanu et al. (2013)"},
		{"dropout-locked", "the same dropout in all steps", "Gal and Ghahramani (2016)"},
		{"dropout-words", "drops words, wherever a step reads them", "Gal and Ghahramani (2016)"},
		{"weight-drop", "drops recurrent weights", "Merity et al. (2018)"},
		{"activation-l2", "keeps the last layer's output small", "Merity et al. (2017)"},
		{"temporal-l2", "keeps its change from step to step small", "Merity et al. (2017)"},
		{"attention", "a decoder's: luong, scaled or bahdanau",
			"Luong et al. (2015), Vaswani et al. (2017), Bahdanau et al. (2015)"},
		{"tie-weights", "the embedding is the output weights", "Press and Wolf (2017)"},
	}
}
