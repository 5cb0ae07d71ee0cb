package subword

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protowire"
)

// The fields of SentencePiece's ModelProto that are read, in sentencepiece_model.proto.
const (
	modelPieces, modelTrainer, modelNormalizer = 1, 2, 3
	pieceText, pieceScore, pieceType           = 1, 2, 3
	trainerType, trainerSuffix, trainerBytes   = 3, 24, 35
	normalizerMap, normalizerPrefix            = 2, 3
	normalizerExtra, normalizerEscape          = 4, 5

	typeBytePairs = 2

	normalPiece, unknownPiece, userPiece = 1, 2, 4
)

// sentencePieces is a model of SentencePiece (Kudo and Richardson 2018, arXiv:1808.06226).
type sentencePieces struct {
	pieces []sentencePiece
	kind   uint64 // of the model
	// Spaces are marks; one comes before the text; those at its ends and behind others are removed.
	escape, prefix, extra bool
	suffix, bytes         bool
	mapped                bool // characters are replaced first
}

type sentencePiece struct {
	text  string
	score float32
	kind  uint64
}

// ReadSentencePiece reads a model of SentencePiece, a .model file: byte-pair encodings that leave
// characters as they are. What it makes is a tokenizer.json.
func ReadSentencePiece(model []byte) (*Tokenizer, error) {
	if len(model) > MaxBytes {
		return nil, fmt.Errorf("it has more than %d bytes", MaxBytes)
	}
	s := sentencePieces{kind: 1, escape: true, prefix: true, extra: true}
	if err := eachField(model, s.field); err != nil {
		return nil, fmt.Errorf("it is no model of SentencePiece: %w", err)
	}
	user := func(p sentencePiece) bool { return p.kind == userPiece }
	switch {
	case len(s.pieces) == 0 || len(s.pieces) > maxTokens:
		return nil, fmt.Errorf("it is no model of SentencePiece: it has %d pieces", len(s.pieces))
	case s.kind != typeBytePairs:
		return nil, errors.New("the model is not a byte-pair encoding: train it with " +
			"--model_type=bpe; unigram is not read")
	case s.mapped:
		return nil, errors.New("the model replaces characters: train it with " +
			"--normalization_rule_name=identity")
	case s.suffix || !s.escape:
		return nil, errors.New("the model treats white space as a suffix, or does not mark it, " +
			"which is not supported")
	case s.prefix && slices.ContainsFunc(s.pieces, user):
		return nil, errors.New("the model has both user-defined symbols and a mark before a " +
			"text, which is not supported: train it with --add_dummy_prefix=false")
	}
	return Read(s.file())
}

// eachField calls use with each field of a message. bytes are those of a string or a message.
func eachField(
	message []byte, use func(field protowire.Number, bytes []byte, n uint64) error,
) error {
	for len(message) > 0 {
		field, kind, size := protowire.ConsumeTag(message)
		if size < 0 {
			return protowire.ParseError(size)
		}
		message = message[size:]
		var bytes []byte
		var n uint64
		var fixed uint32
		switch kind {
		case protowire.VarintType:
			n, size = protowire.ConsumeVarint(message)
		case protowire.BytesType:
			bytes, size = protowire.ConsumeBytes(message)
		case protowire.Fixed32Type:
			fixed, size = protowire.ConsumeFixed32(message)
			n = uint64(fixed)
		default:
			size = protowire.ConsumeFieldValue(field, kind, message)
		}
		if size < 0 {
			return protowire.ParseError(size)
		}
		message = message[size:]
		if err := use(field, bytes, n); err != nil {
			return err
		}
	}
	return nil
}

func (s *sentencePieces) field(field protowire.Number, inner []byte, _ uint64) error {
	switch field {
	case modelPieces:
		p := sentencePiece{kind: normalPiece}
		err := eachField(inner, func(field protowire.Number, bytes []byte, n uint64) error {
			switch field {
			case pieceText:
				p.text = string(bytes)
			case pieceScore:
				p.score = math.Float32frombits(uint32(n))
			case pieceType:
				p.kind = n
			}
			return nil
		})
		if err == nil && (!utf8.ValidString(p.text) || len(p.text) > maxPartBytes) {
			err = fmt.Errorf("the piece %.100q is not UTF-8, or longer than %d bytes", p.text,
				maxPartBytes)
		}
		s.pieces = append(s.pieces, p)
		return err
	case modelTrainer:
		return eachField(inner, func(field protowire.Number, _ []byte, n uint64) error {
			switch field {
			case trainerType:
				s.kind = n
			case trainerSuffix:
				s.suffix = n != 0
			case trainerBytes:
				s.bytes = n != 0
			}
			return nil
		})
	case modelNormalizer:
		return eachField(inner, func(field protowire.Number, bytes []byte, n uint64) error {
			switch field {
			case normalizerMap:
				s.mapped = len(bytes) > 0
			case normalizerPrefix:
				s.prefix = n != 0
			case normalizerExtra:
				s.extra = n != 0
			case normalizerEscape:
				s.escape = n != 0
			}
			return nil
		})
	}
	return nil
}

// file returns the tokenizer.json. Any two pieces whose text together is a third merge into it, and
// the one with the higher score first.
func (s *sentencePieces) file() []byte {
	var b bytes.Buffer
	b.WriteString(`{"version":"1.0","truncation":null,"padding":null,"added_tokens":[`)
	unknown, added := "null", 0
	for id, p := range s.pieces {
		switch p.kind {
		case unknownPiece:
			unknown = string(quoted(p.text))
		case userPiece:
			fmt.Fprintf(&b, addedForm, comma(added), id, quoted(p.text), true, false)
			added++
		}
	}
	var steps []string
	if s.extra {
		steps = append(steps, `{"type":"Replace","content":"","pattern":`+
			`{"Regex":"\\A +| +\\z|(?<= ) +"}}`)
	}
	if s.prefix {
		steps = append(steps, `{"type":"Prepend","prepend":"▁"}`)
	}
	steps = append(steps, `{"type":"Replace","pattern":{"String":" "},"content":"▁"}`)
	first := ""
	if s.prefix {
		first = `,{"type":"Strip","content":" ","start":1,"stop":0}`
	}
	fmt.Fprintf(&b, `],"normalizer":{"type":"Sequence","normalizers":[%s]},"pre_tokenizer":null,`+
		`"post_processor":null,"decoder":{"type":"Sequence","decoders":[{"type":"Replace",`+
		`"pattern":{"String":"▁"},"content":" "},{"type":"ByteFallback"},{"type":"Fuse"}%s]},`+
		`"model":{"type":"BPE","dropout":null,"unk_token":%s,"continuing_subword_prefix":null,`+
		`"end_of_word_suffix":null,"fuse_unk":true,"byte_fallback":%t,"ignore_merges":false,`+
		`"vocab":{`, strings.Join(steps, ","), first, unknown, s.bytes)
	for id, p := range s.pieces {
		fmt.Fprintf(&b, "%s%s:%d", comma(id), quoted(p.text), id)
	}
	b.WriteString(`},"merges":[`)
	for i, m := range s.merges() {
		fmt.Fprintf(&b, "%s[%s,%s]", comma(i), quoted(m[0]), quoted(m[1]))
	}
	b.WriteString("]}}")
	return b.Bytes()
}

// merges returns the merges by falling score. Those into one piece are ordered by their left part,
// the longest first.
func (s *sentencePieces) merges() []mergeJSON {
	normal := map[string]bool{}
	byScore := slices.Clone(s.pieces)
	for _, p := range s.pieces {
		normal[p.text] = p.kind == normalPiece || p.kind == userPiece
	}
	slices.SortStableFunc(byScore, func(p, q sentencePiece) int {
		return cmp.Compare(q.score, p.score)
	})
	var all []mergeJSON
	size := 0
	for _, p := range byScore {
		if !normal[p.text] {
			continue
		}
		for cut := len(p.text) - 1; cut > 0; cut-- {
			if normal[p.text[:cut]] && normal[p.text[cut:]] {
				all = append(all, mergeJSON{p.text[:cut], p.text[cut:]})
				size += len(p.text)
			}
		}
		if size > MaxBytes { // Read refuses it
			break
		}
	}
	return all
}
