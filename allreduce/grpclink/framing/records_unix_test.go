//go:build unix

package framing

import (
	"crypto/aes"
	"crypto/cipher"
	"io"
	"net"
	"syscall"
	"testing"
)

// cpuSeconds is the processor time of this process.
func cpuSeconds(b *testing.B) float64 {
	var used syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &used); err != nil {
		b.Fatal(err)
	}
	return float64(used.Utime.Nano()+used.Stime.Nano()) / 1e9
}

// BenchmarkTLS says where TLS's time goes: the processor time of both ends of a connection on
// loopback for a GiB in writes of 512 KiB, as gRPC makes them, by TCP, by TLS, and by TLS over
// records; and that of the cipher alone, both ways.
func BenchmarkTLS(b *testing.B) {
	const perWrite = 512 << 10
	report := func(b *testing.B, before float64) {
		gib := float64(b.N) * perWrite / (1 << 30)
		b.ReportMetric((cpuSeconds(b)-before)/gib, "cpu-s/GiB")
	}
	serving, dialling := selfSigned(b)
	for name, ends := range map[string]func(dialled, accepted net.Conn) (net.Conn, net.Conn){
		"tcp": func(c, s net.Conn) (net.Conn, net.Conn) { return c, s },
		"tls": func(c, s net.Conn) (net.Conn, net.Conn) { return meet(b, dialling, serving, c, s) },
		"records": func(c, s net.Conn) (net.Conn, net.Conn) {
			return meet(b, ClientCredentials(dialling), Credentials(serving), c, s)
		},
	} {
		b.Run(name, func(b *testing.B) {
			client, server := ends(connected(b))
			b.SetBytes(perWrite)
			read := make(chan error, 1)
			before := cpuSeconds(b)
			go func() {
				_, err := io.CopyBuffer(struct{ io.Writer }{io.Discard},
					struct{ io.Reader }{server}, make([]byte, 64<<10))
				read <- err
			}()
			for p := make([]byte, perWrite); b.Loop(); {
				if _, err := client.Write(p); err != nil {
					b.Fatal(err)
				}
			}
			client.Close()
			<-read // the end of the connection
			report(b, before)
		})
	}
	b.Run("cipher", func(b *testing.B) {
		block, err := aes.NewCipher(make([]byte, 16))
		if err != nil {
			b.Fatal(err)
		}
		gcm, err := cipher.NewGCM(block)
		if err != nil {
			b.Fatal(err)
		}
		record, nonce := make([]byte, recordBytes+gcm.Overhead()), make([]byte, 12)
		before := cpuSeconds(b)
		for b.Loop() {
			for range perWrite / recordBytes {
				sealed := gcm.Seal(record[:0], nonce, record[:recordBytes], nil)
				if _, err := gcm.Open(sealed[:0], nonce, sealed, nil); err != nil {
					b.Fatal(err)
				}
			}
		}
		report(b, before)
	})
}
