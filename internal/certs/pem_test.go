package certs

import (
	"bytes"
	"crypto/rand"
	"crypto/x509"
	"encoding/binary"
	"encoding/pem"
	"math/big"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf16"

	"github.com/google/go-cmp/cmp"

	"github.com/meshctl/meshctl/internal/mesh"
)

// sample has a block of each kind that Scan knows.
func sample(tb testing.TB) []byte {
	tb.Helper()
	now := time.Date(2026, 6, 1, 0, 0, 0, 0, time.UTC)
	root, err := NewRoot(CASpec{Algorithm: ECDSAP256, CommonName: "root", TTL: time.Hour}, now, rand.Reader)
	if err != nil {
		tb.Fatal(err)
	}
	key, err := EncodeKey(root.Key)
	if err != nil {
		tb.Fatal(err)
	}
	csr, err := NewCSR(root.Key, mesh.Identity{})
	if err != nil {
		tb.Fatal(err)
	}
	signer := *root.Cert
	signer.KeyUsage |= x509.KeyUsageCRLSign
	crl, err := x509.CreateRevocationList(rand.Reader, &x509.RevocationList{
		Number: big.NewInt(1), ThisUpdate: now, NextUpdate: now.Add(time.Hour),
	}, &signer, root.Key)
	if err != nil {
		tb.Fatal(err)
	}
	return slices.Concat(EncodeCerts(root.Cert), key, csr, pem.EncodeToMemory(&pem.Block{Type: "X509 CRL", Bytes: crl}))
}

// utf16Of returns text in UTF-16, with a byte order mark.
func utf16Of(text string, order binary.AppendByteOrder) string {
	var out []byte
	for _, unit := range utf16.Encode([]rune("\ufeff" + text)) {
		out = order.AppendUint16(out, unit)
	}
	return string(out)
}

// TestEncodings: the error of certificates in another encoding names the encoding.
func TestEncodings(t *testing.T) {
	t.Parallel()
	cert, _, _ := strings.Cut(string(sample(t)), "-----BEGIN PRIVATE")
	for text, want := range map[string]string{"\ufeff" + cert: "byte order mark", utf16Of(cert, binary.BigEndian): "UTF-16"} {
		if _, err := ParseCerts([]byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %s", err, want)
		}
	}
}

// scanCase is a text with the expected blocks.
type scanCase struct {
	text string
	want []found
}

type found struct {
	Line  int
	Fault Fault
}

func scanCases(good string) map[string]scanCase {
	cert := good[:strings.Index(good, "-----BEGIN PRIVATE")]
	const block = "-----BEGIN %-----\nAAAA\n-----END %-----\n"
	named := func(blockType string) string { return strings.ReplaceAll(block, "%", blockType) }
	return map[string]scanCase{
		"nothing":             {"", nil},
		"text alone":          {"hello\nworld\n", nil},
		"one":                 {cert, []found{{1, ""}}},
		"CRLF":                {strings.ReplaceAll(cert, "\n", "\r\n"), []found{{1, ""}}},
		"no line break":       {strings.TrimSpace(cert), []found{{1, ""}}},
		"text before":         {"a\nb\n" + cert, []found{{3, ""}}},
		"text behind":         {cert + "a\n", []found{{1, ""}, {strings.Count(cert, "\n") + 1, FaultTrailing}}},
		"blank lines behind":  {cert + "\n \n\t\n", []found{{1, ""}}},
		"no END":              {"-----BEGIN CERTIFICATE-----\nAAAA\n", []found{{1, FaultDamaged}}},
		"BEGIN in BEGIN":      {"-----BEGIN CERTIFICATE-----\nAAAA\n" + cert, []found{{1, FaultDamaged}, {3, ""}}},
		"END of another type": {"-----BEGIN CERTIFICATE-----\nAAAA\n-----END X-----\n", []found{{1, FaultDamaged}}},
		"joined":              {strings.TrimSpace(cert) + cert, []found{{1, FaultDamaged}}},
		"indented":            {"  " + strings.ReplaceAll(cert, "\n", "\n  "), []found{{1, FaultDamaged}}},
		"byte order mark":     {"\ufeff" + cert, []found{{1, FaultDamaged}}},
		"UTF-16":              {utf16Of(cert, binary.LittleEndian), []found{{1, FaultDamaged}}},
		"UTF-16, big end":     {utf16Of("text\n"+cert, binary.BigEndian), []found{{1, FaultDamaged}}},
		"UTF-16 without mark": {utf16Of(cert, binary.LittleEndian)[2:], []found{{1, FaultDamaged}}},
		"UTF-16 behind it":    {cert + utf16Of(cert, binary.LittleEndian), []found{{1, ""}, {strings.Count(cert, "\n") + 1, FaultTrailing}}},
		"not base64":          {strings.Replace(cert, "MII", "M!I", 1), []found{{1, FaultDamaged}}},
		"unknown":             {named("PKCS7"), []found{{1, FaultUnknown}}},
		"trusted":             {named("TRUSTED CERTIFICATE"), []found{{1, FaultTrusted}}},
		"encrypted":           {named("ENCRYPTED PRIVATE KEY"), []found{{1, FaultEncrypted}}},
		"parameters":          {named("EC PARAMETERS"), nil},
		"malformed":           {named("CERTIFICATE") + named("PRIVATE KEY") + named("CERTIFICATE REQUEST") + named("X509 CRL"), []found{{1, FaultMalformed}, {4, FaultMalformed}, {7, FaultMalformed}, {10, FaultMalformed}}},
		"huge key":            {string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: make([]byte, maxKeyBlock+1)})), []found{{1, FaultMalformed}}},
	}
}

func TestScan(t *testing.T) {
	t.Parallel()
	good := string(sample(t))
	for name, tc := range scanCases(good) {
		var got []found
		for _, b := range Scan([]byte(tc.text)) {
			got = append(got, found{b.Line, b.Fault})
			if (b.Err == nil) != (b.Fault == "") {
				t.Errorf("%s: fault %q with error %v", name, b.Fault, b.Err)
			}
		}
		if diff := cmp.Diff(tc.want, got); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
	all := Scan([]byte(good))
	if len(all) != 4 || all[0].Cert == nil || all[1].KeyOf == nil || all[2].CSR == nil || all[3].CRL == nil {
		t.Fatalf("got %+v", all)
	}
	if !all[1].IsKey() || all[0].IsKey() || !SameKey(all[1].KeyOf, all[0].Cert.PublicKey) {
		t.Errorf("got the key %+v", all[1])
	}
}

// FuzzScan: Scan finds every block that encoding/pem finds, and reports a fault for
// everything it drops.
func FuzzScan(f *testing.F) {
	good := sample(f)
	f.Add(good)
	for _, tc := range scanCases(string(good)) {
		f.Add([]byte(tc.text))
	}
	f.Add([]byte("-----BEGIN A-----\n-----BEGIN B-----\nAA==\n-----END B-----\n"))
	f.Add([]byte("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE----------BEGIN CERTIFICATE-----\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		blocks := Scan(data)
		if len(blocks) > MaxBlocks+1 {
			t.Fatalf("%d blocks", len(blocks))
		}
		lines := bytes.Count(data, []byte("\n")) + 1
		last := 0
		for _, b := range blocks {
			if b.Line < 1 || b.Line > lines || b.Line < last {
				t.Fatalf("line %d of %d, after %d", b.Line, lines, last)
			}
			last = b.Line
			if (b.Fault == "") != (b.Err == nil) {
				t.Fatalf("fault %q with error %v", b.Fault, b.Err)
			}
			if b.Fault == "" && b.Cert == nil && b.CSR == nil && b.CRL == nil && b.KeyOf == nil {
				t.Fatalf("block %+v holds nothing", b)
			}
		}
		if block, _ := pem.Decode(data); block != nil && block.Type != blockECParameters && len(blocks) == 0 {
			t.Fatalf("the block %q was not seen", block.Type)
		}
	})
}
