------------------------------- MODULE Mixes -------------------------------
(* Which mutations a run has: of each version its kind. *)

EXTENDS Cell, Sequences

Kinds(allowed, m) ==
  UNION {IF k = "cas" THEN {Cas(v) : v \in 1..(m - 1)}
         ELSE {CASE k = "set" -> Set [] k = "erase" -> Erase
                 [] k = "once" -> Once [] k = "add" -> Add} : k \in allowed}

Two(allowed) == {<<a, b>> : a \in Kinds(allowed, 1), b \in Kinds(allowed, 2)}
Three(allowed) == {Append(s, c) : s \in Two(allowed), c \in Kinds(allowed, 3)}
Four(allowed) == {Append(s, d) : s \in Three(allowed), d \in Kinds(allowed, 4)}
HasCas(s) == \E i \in DOMAIN s : s[i] >= 0
HasOnce(s) == \E i \in DOMAIN s : s[i] = Once

TwoSets == {<<Set, Set>>}
ThreeSets == {<<Set, Set, Set>>}
TwoPlain == Two({"set", "erase"})
ThreePlain == Three({"set", "erase"})
FourPlain == Four({"set", "erase"})
TwoWithCas == {s \in Two({"set", "erase", "cas", "add"}) : HasCas(s)}
ThreeWithCas == {s \in Three({"set", "erase", "cas", "add"}) : HasCas(s)}
TwoWithRefused == {s \in Two({"set", "erase", "once"}) : HasOnce(s)}
ThreeWithRefused == {s \in Three({"set", "erase", "once"}) : HasOnce(s)}
TwoAny == Two({"set", "erase", "cas", "add"})
ThreeAny == Three({"set", "erase", "cas", "add"})
SetCas == {<<Set, Cas(1)>>}
SetOnce == {<<Set, Once>>}
SetSetCas == {<<Set, Set, Cas(1)>>}
SetCasCas == {<<Set, Cas(1), Cas(1)>>, <<Set, Cas(1), Cas(2)>>}
SetEraseAdd == {<<Set, Erase, Add>>}
SetFill == {<<Set, Fill>>}
AnyFill == {<<k, Fill>> : k \in {Set, Erase, Once, Add}}
AnyTwoFill == {<<a, b, Fill>> : a, b \in {Set, Erase}}
SetAny == {<<Set, k>> : k \in {Set, Erase, Add, Cas(1)}}
StoredSet == {<<Stored, Set>>}
StoredAny == {<<Stored, k>> : k \in {Set, Erase, Add, Cas(1)}}
StoredTwo == {<<Stored, a, b>> : a \in {Set, Erase, Cas(1)}, b \in {Set, Erase, Add, Cas(1), Cas(2)}}
StoredCas == {<<Stored, Cas(1)>>}
StoredSetCas == {<<Stored, Set, Cas(1)>>}
SetSetCopy == {<<Set, Set, Copied(1)>>}

=============================================================================
