package job

import (
	"rondo/model"
	rondov1 "rondo/proto/rondo/v1"
	"rondo/task"
)

// Network is the shape of a task's network, as sums and estimates need it.
type Network struct {
	Tensors []model.View // all parameters
	// Table names the tensor of which a pass only touches the rows of the tokens that it reads; "":
	// none. With TableByColumn each token has a column of it.
	Table         string
	TableByColumn bool
	Tokens        int // that the network reads: the vocabulary's size
}

// NetworkOf is the network of a job for a vocabulary and outputs of these sizes: see Data.
func NetworkOf(spec *rondov1.JobSpec, vocabulary, outputs int) (Network, error) {
	if spec.Task == task.LM {
		return languageNetwork(spec, vocabulary)
	}
	if spec.Task == task.Regress {
		c, err := SeriesConfig(spec, vocabulary, outputs)
		return Network{Tensors: model.Layout(c), Tokens: vocabulary}, err
	}
	if spec.Task == task.Translate {
		c, err := TranslatorConfig(spec, vocabulary, outputs)
		if err != nil {
			return Network{}, err
		}
		return Network{Tensors: c.Layout(), Tokens: vocabulary}, nil
	}
	c, err := LabellerConfig(spec, vocabulary, outputs)
	if err != nil {
		return Network{}, err
	}
	return Network{Tensors: c.Layout(), Tokens: c.Vocab}, nil
}

// languageNetwork is the network of a language model.
func languageNetwork(spec *rondov1.JobSpec, vocabulary int) (Network, error) {
	c, err := ModelConfig(spec, vocabulary)
	if err != nil {
		return Network{}, err
	}
	n := Network{Tensors: model.Layout(c), TableByColumn: c.Embed == 0, Tokens: c.Vocab}
	if !c.TieWeights { // tied weights are also the output layer's, which reads all of them
		n.Table = c.LookupWeight()
	}
	return n, nil
}
