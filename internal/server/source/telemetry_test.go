package source

import (
	"flag"
	"os"
	"strings"
	"testing"
)

// TestFunctionsOfExpressions: testdata/functions.cel calls every function that is allowed.
// A test with Envoy reads it.
func TestFunctionsOfExpressions(t *testing.T) {
	t.Parallel()
	const file = "testdata/functions.cel"
	var calls []string
	for signature := range strings.FieldsSeq(celFunctions) {
		name, count, _ := strings.Cut(signature, "/")
		args := strings.TrimPrefix(strings.Repeat(", a", int(count[0]-'0')), ", ")
		if strings.HasPrefix(name, ".") {
			name = "a" + name
		}
		calls = append(calls, name+"("+args+") == a")
	}
	expression := strings.Join(calls, " || ")
	if err := checkExpression(expression); err != nil {
		t.Error(err)
	}
	if update, _ := flag.Lookup("update").Value.(flag.Getter).Get().(bool); update {
		if err := os.WriteFile(file, []byte(expression), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := os.ReadFile(file); err != nil || string(got) != expression {
		t.Errorf("%s holds %q, error %v, want %q (-update rewrites it)", file, got, err, expression)
	}
}
