package devicetest

import (
	"fmt"

	"rondo/compute"
)

// Recorder is a stand-in for a device that records. It wraps another device, keeps the calls and
// repeats them. Calls that are not allowed while recording panic.
type Recorder struct {
	*Stager
	script
	// Fail, if set, is Record's error, after it has called f.
	Fail error
	// Recorded, Replayed and Open count recordings that were made, replays, and recordings that
	// have not been closed.
	Recorded, Replayed, Open int
}

// script holds the calls of the recording that is under way.
type script struct {
	// Refuse, if set, is the error that calls panic with while the device records. Record returns
	// it.
	Refuse error

	recording bool
	calls     []func()
}

// NewRecorder makes a recorder of a device.
func NewRecorder(dev compute.Device) *Recorder { return &Recorder{Stager: NewStager(dev)} }

// Record is compute.Recorder's.
func (r *Recorder) Record(f func() error) (compute.Recording, error) {
	r.refuse("Record")
	r.recording, r.calls = true, nil
	err := r.caught(f)
	r.recording = false
	if err == nil {
		err = r.Fail
	}
	if err != nil {
		return nil, err
	}
	r.Recorded++
	r.Open++
	return &recorded{r, r.calls}, nil
}

// caught calls f, and returns a refusal as an error.
func (r *script) caught(f func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			refusal, ok := p.(error)
			if !ok || refusal != r.Refuse { //nolint:errorlint // it is this very one
				panic(p)
			}
			err = refusal
		}
	}()
	return f()
}

type recorded struct {
	r     *Recorder
	calls []func()
}

func (c *recorded) Replay() {
	if c.calls == nil {
		panic("devicetest: a recording that is empty or closed is replayed")
	}
	c.r.Replayed++
	for _, call := range c.calls {
		call()
	}
}

func (c *recorded) Close() {
	if c.calls != nil {
		c.calls = nil
		c.r.Open--
	}
}

// do makes a call, or keeps it.
func (r *script) do(call func()) {
	switch {
	case r.recording && r.Refuse != nil:
		panic(r.Refuse)
	case r.recording:
		r.calls = append(r.calls, call)
	default:
		call()
	}
}

// refuse panics while the device records.
func (r *script) refuse(what string) {
	if r.recording {
		panic(fmt.Sprintf("devicetest: %s while the device records", what))
	}
}

// Calls that allocate, free or read back.

// Alloc is compute.Device's.
func (r *Recorder) Alloc(n int) []float32 { r.refuse("Alloc"); return r.Device.Alloc(n) }

// Free is compute.Device's.
func (r *Recorder) Free(x []float32) { r.refuse("Free"); r.Device.Free(x) }

// Download is compute.Device's.
func (r *Recorder) Download(dst, src []float32) {
	r.refuse("Download")
	r.Stager.Download(dst, src)
}

// SumSquares is compute.Device's.
func (r *Recorder) SumSquares(x []float32) float64 {
	r.refuse("SumSquares")
	return r.Stager.SumSquares(x)
}

// NewRecurrent is compute.Device's.
func (r *Recorder) NewRecurrent(s compute.RecurrentShape, inference bool) compute.Recurrent {
	r.refuse("NewRecurrent")
	return &recordedLayer{r.Device.NewRecurrent(s, inference), r}
}

// NewOutput is compute.Device's.
func (r *Recorder) NewOutput(s compute.OutputShape) compute.Output {
	r.refuse("NewOutput")
	return &recordedOutput{r.Stager.NewOutput(s), r}
}

// NewClipper is compute.Device's.
func (r *Recorder) NewClipper() compute.Clipper {
	r.refuse("NewClipper")
	return &recordedClipper{r.Stager.NewClipper(), r}
}

// Calls that are work.

// StartDownload may be recorded: wait then waits for the last replay's copy.
func (r *Recorder) StartDownload(dst, src []float32) (wait func()) {
	var last func()
	r.do(func() { last = r.Stager.StartDownload(dst, src) })
	return func() { last() }
}

// StartUpload is compute.Stager's.
func (r *Recorder) StartUpload(dst, src []float32) {
	r.do(func() { r.Stager.StartUpload(dst, src) })
}

// Upload is compute.Device's.
func (r *Recorder) Upload(dst, src []float32) { r.do(func() { r.Device.Upload(dst, src) }) }

// Zero is compute.Device's.
func (r *Recorder) Zero(x []float32) { r.do(func() { r.Device.Zero(x) }) }

// AddBias is compute.Device's.
func (r *Recorder) AddBias(x, b []float32) { r.do(func() { r.Device.AddBias(x, b) }) }

// Scale is compute.Device's.
func (r *Recorder) Scale(x []float32, a float32) {
	r.do(func() { r.Device.Scale(x, a) })
}

// Add is compute.Device's.
func (r *Recorder) Add(y, x []float32) { r.do(func() { r.Device.Add(y, x) }) }

// Gemm is compute.Device's.
func (r *Recorder) Gemm(transA, transB bool, m, n, k int, alpha float32, a, b []float32,
	beta float32, c []float32) {
	r.do(func() { r.Device.Gemm(transA, transB, m, n, k, alpha, a, b, beta, c) })
}

// Embed is compute.Device's.
func (r *Recorder) Embed(y, table []float32, ids []int32) {
	r.do(func() { r.Device.Embed(y, table, ids) })
}

// EmbedBackward is compute.Device's.
func (r *Recorder) EmbedBackward(dtable, dy []float32, ids []int32) {
	r.do(func() { r.Device.EmbedBackward(dtable, dy, ids) })
}

// Dropout is compute.Device's.
func (r *Recorder) Dropout(y, x []float32, steps int, p float32, keys []uint64) {
	r.do(func() { r.Device.Dropout(y, x, steps, p, keys) })
}

// CopyRows is compute.Device's.
func (r *Recorder) CopyRows(dst, src compute.Columns, n, width int, ids []int32, add bool) {
	r.do(func() { r.Device.CopyRows(dst, src, n, width, ids, add) })
}

// Pool is compute.Device's.
func (r *Recorder) Pool(p compute.Pooling, y, x []float32, steps int, lengths []int32) {
	r.do(func() { r.Device.Pool(p, y, x, steps, lengths) })
}

// PoolBackward is compute.Device's.
func (r *Recorder) PoolBackward(p compute.Pooling, dx, dy, x, y []float32, steps int,
	lengths []int32) {
	r.do(func() { r.Device.PoolBackward(p, dx, dy, x, y, steps, lengths) })
}

// Tanh is compute.Device's.
func (r *Recorder) Tanh(x []float32) { r.do(func() { r.Device.Tanh(x) }) }

// TanhBackward is compute.Device's.
func (r *Recorder) TanhBackward(dy, y []float32) { r.do(func() { r.Device.TanhBackward(dy, y) }) }

// Attend is compute.Device's.
func (r *Recorder) Attend(a compute.Attention) { r.do(func() { r.Device.Attend(a) }) }

// AttendBackward is compute.Device's.
func (r *Recorder) AttendBackward(a compute.Attention, dy, dq, dk, dv []float32) {
	r.do(func() { r.Device.AttendBackward(a, dy, dq, dk, dv) })
}

// LayerNorm is compute.Device's.
func (r *Recorder) LayerNorm(n compute.LayerNorm) { r.do(func() { r.Device.LayerNorm(n) }) }

// LayerNormBackward is compute.Device's.
func (r *Recorder) LayerNormBackward(n compute.LayerNorm, dy, dx, dw, db []float32) {
	r.do(func() { r.Device.LayerNormBackward(n, dy, dx, dw, db) })
}

// Update is compute.Device's.
func (r *Recorder) Update(u compute.Update, params, grads, s1, s2 []float32) {
	r.do(func() { r.Device.Update(u, params, grads, s1, s2) })
}

type recordedLayer struct {
	compute.Recurrent
	r *Recorder
}

func (l *recordedLayer) Forward(w compute.RecurrentWeights, in compute.RecurrentInput,
	state compute.RecurrentState, y []float32, out compute.RecurrentState) {
	l.r.do(func() { l.Recurrent.Forward(w, in, state, y, out) })
}
func (l *recordedLayer) Backward(dy []float32, dout compute.RecurrentState,
	dw compute.RecurrentWeights, dx []float32, dstate compute.RecurrentState) {
	l.r.do(func() { l.Recurrent.Backward(dy, dout, dw, dx, dstate) })
}
func (l *recordedLayer) Close() { l.r.refuse("Close"); l.Recurrent.Close() }

type recordedOutput struct {
	compute.Output
	r *Recorder
}

func (o *recordedOutput) Forward(x, w, b []float32, targets []int32) {
	o.r.do(func() { o.Output.Forward(x, w, b, targets) })
}
func (o *recordedOutput) ForwardBackward(x, w, b []float32, targets []int32, scale float32,
	dx, dw, db []float32) {
	o.r.do(func() { o.Output.ForwardBackward(x, w, b, targets, scale, dx, dw, db) })
}
func (o *recordedOutput) Sum() float64 { o.r.refuse("Sum"); return o.Output.Sum() }
func (o *recordedOutput) Close()       { o.r.refuse("Close"); o.Output.Close() }

type recordedClipper struct {
	compute.Clipper
	r *Recorder
}

func (c *recordedClipper) Clip(g []float32, by *compute.Clip, loss *compute.Loss) {
	c.r.do(func() { c.Clipper.Clip(g, by, loss) })
}
func (c *recordedClipper) Update(u *compute.Update, params, grads, s1, s2 []float32) {
	c.r.do(func() { c.Clipper.Update(u, params, grads, s1, s2) })
}
func (c *recordedClipper) Norm() float64 { c.r.refuse("Norm"); return c.Clipper.Norm() }
func (c *recordedClipper) Close()        { c.r.refuse("Close"); c.Clipper.Close() }
