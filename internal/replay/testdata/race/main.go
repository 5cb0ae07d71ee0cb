// Program race prints what Go leaves to chance: the order of maps, of select and of goroutines,
// random numbers and the time.
package main

import (
	"fmt"
	"math/rand/v2"
	"time"
)

func main() {
	words := map[string]int{}
	a, b := make(chan int, 100), make(chan int, 100)
	for i := range 100 {
		words[fmt.Sprint(i)] = i
		a <- i
		b <- -i
	}
	for word := range words {
		fmt.Print(word, " ")
	}
	for range 100 {
		select {
		case i := <-a:
			fmt.Print(i, " ")
		case i := <-b:
			fmt.Print(i, " ")
		}
	}
	done := make(chan int)
	for i := range 20 {
		go func() {
			time.Sleep(time.Duration(rand.IntN(5)) * time.Millisecond)
			done <- i
		}()
	}
	for range 20 {
		fmt.Print(<-done, " ")
	}
	fmt.Println(rand.Uint64(), time.Now().UnixNano())
}
