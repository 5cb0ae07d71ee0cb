package task

// About returns what a task predicts, and the source of its network: `rondo models` and
// docs/models.md have them. Both are empty for an unknown task.
func About(name string) (predicts, source string) {
	about := map[string][2]string{
		LM: {"the next token of a text",
			"Bengio et al. (2003), Mikolov et al. (2010)"},
		Classify: {"one of C labels for a text",
			"Goodfellow et al., Deep Learning, figure 10.5"},
		Tag: {"one of C labels for each token",
			"Graves and Schmidhuber (2005)"},
		Fill: {"the hidden tokens of a text",
			"Taylor (1953), Devlin et al. (2019)"},
		Translate: {"a text for a text",
			"Sutskever et al. (2014), Bahdanau et al. (2015)"},
		Describe: {"a text for a vector",
			"Deep Learning, figure 10.9; Vinyals et al. (2015)"},
		Regress: {"the next row of a time series",
			"Deep Learning, section 10.2"},
		Reservoir: {"the next row, by an echo state network",
			"Jaeger (2001), Lukoševičius (2012)"},
		Answer: {"the answer to a question about a story",
			"Sukhbaatar et al. (2015)"},
		Turing: {"the output of an algorithm for a sequence",
			"Graves et al. (2014)"},
		Tree: {"a label for a tree and its nodes",
			"Deep Learning, section 10.6; Tai et al. (2015)"},
		NGram: {"no network: counts of the text's n-grams",
			"Chen and Goodman (1998)"},
		MLP: {"the next token, by a perceptron on those before",
			"Bengio et al. (2003)"},
		HMM: {"the next token, by a hidden Markov model",
			"Baum et al. (1970), Rabiner (1989)"},
	}[name]
	return about[0], about[1]
}
