package shm

import (
	"context"
	"encoding/hex"
	"strings"
	"testing"
)

// FuzzTicket: a text that is no ticket of an offer is an error, and connects to nobody else's
// socket.
func FuzzTicket(f *testing.F) {
	f.Add("")
	f.Add(strings.Repeat("0", ticketBytes))
	f.Add(strings.Repeat("zz", ticketBytes/2))
	f.Add("../" + strings.Repeat("f", ticketBytes-3))
	f.Fuzz(func(t *testing.T, text string) {
		address, secret, err := Ticket(text).parse()
		if err == nil && (address.Name[:7] != "@rondo-" || len(secret) != secretBytes ||
			!strings.EqualFold(address.Name[7:]+hex.EncodeToString(secret), text)) {
			t.Errorf("%q became %s and a secret of %d bytes", text, address, len(secret))
		}
		ctx, cancel := context.WithTimeout(t.Context(), moment)
		defer cancel()
		if receiver, err := Take(ctx, Ticket(text)); err == nil {
			receiver.Close()
			t.Errorf("%q is a ticket", text)
		}
	})
}
