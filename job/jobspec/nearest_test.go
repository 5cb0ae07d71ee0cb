package jobspec

import "testing"

func TestNearest(t *testing.T) {
	names := []string{"hidden", "batch", "bptt", "lr"}
	for wrong, want := range map[string]string{
		"hiden": "hidden", "hiddne": "hidden", "hidden1": "hidden", "bach": "batch", "bppt": "bptt",
		"l": "", "xy": "", "epochs": "", "": "", "Lr": "lr",
	} {
		if got := Nearest(wrong, names); got != want {
			t.Errorf("%q is %q, want %q", wrong, got, want)
		}
	}
}
