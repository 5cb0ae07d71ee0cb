package busbw

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"math/big"
	"runtime"
	"time"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
)

// selfSigned makes TLS 1.3 credentials with a certificate of this rank's own. The neighbours do not
// verify it: a measurement has no secrets, and the signer does not affect the speed.
func selfSigned() (server, client credentials.TransportCredentials, err error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1),
		NotAfter: time.Now().Add(24 * time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		return nil, nil, err
	}
	own := tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
	server = credentials.NewTLS(&tls.Config{Certificates: []tls.Certificate{own},
		MinVersion: tls.VersionTLS13})
	client = credentials.NewTLS(&tls.Config{MinVersion: tls.VersionTLS13,
		InsecureSkipVerify: true}) //nolint:gosec // the ranks are this process's own
	return server, client, nil
}

// recordBytes is what a record of TLS carries, and cipherBytes how much is timed.
const (
	recordBytes = 16 << 10
	cipherBytes = 256 << 20
)

// cipherRate returns the bytes a second that one core encrypts as TLS 1.3 does here: AES-128-GCM,
// record by record, in the cache. Decrypting takes as long.
func cipherRate() (float64, error) {
	block, err := aes.NewCipher(make([]byte, 16))
	if err != nil {
		return 0, err
	}
	gcm, err := cipher.NewGCM(block)
	if err != nil {
		return 0, err
	}
	record, nonce := make([]byte, recordBytes, recordBytes+gcm.Overhead()), make([]byte, 12)
	began := time.Now()
	for range cipherBytes / recordBytes {
		gcm.Seal(record[:0], nonce, record, nil)
	}
	return cipherBytes / time.Since(began).Seconds(), nil
}

// cipherBound is the bus bandwidth of ranks on one machine whose cores only encrypt and decrypt.
// Each rank does both with as many bytes as busbw counts.
func cipherBound(rate float64, world int) float64 {
	return rate * float64(min(runtime.GOMAXPROCS(0), 2*world)) / float64(2*world)
}

// unmarked hides from package grpclink that its connections have no TLS, so that grpclink leaves
// them to gRPC.
type unmarked struct {
	credentials.TransportCredentials
}

// plainGRPC makes credentials without TLS of a protocol that grpclink does not know.
func plainGRPC() (server, client credentials.TransportCredentials, err error) {
	creds := unmarked{insecure.NewCredentials()}
	return creds, creds, nil
}

// Info names the protocol.
func (unmarked) Info() credentials.ProtocolInfo {
	return credentials.ProtocolInfo{SecurityProtocol: "none"}
}

// Clone returns a copy.
func (u unmarked) Clone() credentials.TransportCredentials {
	return unmarked{u.TransportCredentials.Clone()}
}
