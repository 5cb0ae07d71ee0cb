package certs

import (
	"fmt"
	"net"
)

// Exposed reports whether other machines reach a listener at host:port: unless it is on loopback.
func Exposed(address string) bool {
	host, _, err := net.SplitHostPort(address)
	ip := net.ParseIP(host)
	return err != nil || host != "localhost" && (ip == nil || !ip.IsLoopback())
}

// CheckListener returns an error if a flag's address is exposed, and nobody has decided how it is
// protected: by --tls, or by --insecure not at all.
func CheckListener(flag, address string, decided bool) error {
	if decided || !Exposed(address) {
		return nil
	}
	return fmt.Errorf("--%s %s is open to other machines: give --tls FOLDER (rondo certs makes "+
		"one), or --insecure to let anybody there read and change what passes", flag, address)
}
