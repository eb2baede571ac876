// Command meshctl takes the place of meshctl in tests.
package main

import "fmt"

func main() { fmt.Println("v1 (go)") }
