package connlimit

import (
	"errors"
	"net"
	"os"
	"testing"
	"time"
)

// TestLimit: a new connection ends the oldest one that is not kept; if all are kept, itself.
func TestLimit(t *testing.T) {
	raw, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	const most = 3
	l := New(raw, func() int { return most })
	defer l.Close()
	accepted := make(chan net.Conn, 100)
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				close(accepted)
				return
			}
			accepted <- conn
		}
	}()
	dial := func() net.Conn {
		t.Helper()
		conn, err := net.Dial("tcp", raw.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
		return conn
	}
	open := func(name string, conn net.Conn, want bool) {
		t.Helper()
		_ = conn.SetReadDeadline(time.Now().Add(10 * time.Second))
		if want {
			_ = conn.SetReadDeadline(time.Now().Add(10 * time.Millisecond))
		}
		_, err := conn.Read(make([]byte, 1))
		if is := errors.Is(err, os.ErrDeadlineExceeded); is != want {
			t.Errorf("%s is open: %t; %v", name, is, err)
		}
	}
	link, idle := dial(), dial()
	server := <-accepted
	<-accepted
	release := l.Keep(server.RemoteAddr())
	again := l.Keep(server.RemoteAddr())
	release()
	release() // a second time changes nothing
	other := dial()
	<-accepted
	strangers := make([]net.Conn, 20)
	for i := range strangers {
		strangers[i] = dial()
		<-accepted
	}
	open("the link", link, true)
	open("an idle one", idle, false)
	open("another idle one", other, false)
	open("the newest", strangers[19], true)
	open("the one before", strangers[18], true)
	open("an older one", strangers[17], false)

	kept := []func(){again}
	for _, conn := range strangers[18:] {
		kept = append(kept, l.Keep(conn.LocalAddr()))
	}
	late := dial()
	open("one too many", late, false)
	kept[1]()
	newer := dial()
	<-accepted
	open("the one in its place", newer, true)
	open("the one that was released", strangers[18], false)
	_ = strangers[19].Close()
	open("the link", link, true)
	l.Keep(&net.TCPAddr{})() // of a connection that has gone
}
