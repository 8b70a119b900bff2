-------------------------------- MODULE Cell --------------------------------
(* One key of a cell with R=3.2: its replicas, mutations, evictions, GETs,    *)
(* repair, and crash with recovery. Rules are those of docs/quorum.md.        *)
(*                                                                            *)
(* Mutation m carries version m, and a version stands for its value. SETs and *)
(* ERASEs reach any replica at any time, any number of times, or never: so    *)
(* nothing is remembered of messages that are under way. A CAS reaches each   *)
(* replica at most once, or never. Mutations begin in any order of versions:  *)
(* clocks are arbitrary.                                                      *)
(*                                                                            *)
(* What one replica knows of the key is one number:                           *)
(*   v > 0   present at version v      -v   a tombstone at v      0   nothing *)

EXTENDS Integers, FiniteSets

CONSTANTS
  Process,    \* that hold the key, or will
  Place,      \* of each process: its place in the cohort. Two of one place are
              \* one replica, before and after it has moved.
  First,      \* the three that hold the key in the beginning
  Nobody,
  Mixes,      \* which mutations there are: a set of sequences of kinds
  Evicts,     \* replicas evict and forget tombstones, at any time
  Heals,      \* anybody evicts what a replica was seen to hold, by an ERASE at
              \* that entry's own version
  OtherKeys,  \* other keys of the shard raise bounds and floors
  Crashes,    \* how many
  CoarseRecovery,  \* one step: a peer tells its bounds as its epoch is raised
  FrozenRise, \* of module Move: a frozen process lets its epoch be raised
  Without     \* the rule that is not followed, as a string

VARIABLES
  kind,       \* of each mutation
  have,       \* of each process: what it knows of the key
  floor,      \* of each process: the bound of keys of which it knows nothing
  epoch,
  role,       \* "up", "recovering"; others in module Move
  acks,       \* of each mutation: {<<process, epoch>>} that have applied it, as
              \* far as its client knows and it may still matter
  sent,       \* of each CAS: the places that have received it, or never will
  refused,    \* of each CAS: the places that have refused it
  acked,      \* mutations that were acknowledged to their clients
  failed,     \* mutations that were reported as failed
  hits,       \* mutations whose value some GET has returned
  vote,       \* the first vote of a GET, and what was known when it began
  rec,        \* the recovery that is under way
  crashes,    \* that may still come
  wrong       \* what some GET has broken

stores == <<have, floor>>
clients == <<kind, acks, sent, refused, acked, failed>>
gets == <<hits, vote, wrong>>
vars == <<kind, have, floor, epoch, role, acks, sent, refused, acked, failed,
          hits, vote, rec, crashes, wrong>>

-----------------------------------------------------------------------------
(* Kinds of mutations *)

Set == -1
Erase == -2
Once == -3          \* a SET whose message no layer repeats, and that may be refused for good
Cas(v) == v         \* expects version v
Add == 0            \* expects nothing
Stored == -4        \* a SET that all hold and that was acknowledged in the beginning
Fill == -5          \* module Fill
Copied(v) == 100 + v  \* the value of v again: module Reversion

Mutation == DOMAIN kind
IsCas(m) == kind[m] \in 0..99
IsSet(m) == kind[m] \in {Set, Erase, Stored}
(* Delivered at most once, and it may fail. *)
IsOnce(m) == kind[m] \in {Once, Fill} \/ IsCas(m)
(* Which value is seen where this version is. *)
Value(m) == IF kind[m] > 100 THEN kind[m] - 100 ELSE m

Follows(rule) == Without # rule

Abs(n) == IF n < 0 THEN -n ELSE n
Max(a, b) == IF a > b THEN a ELSE b
Top(S) == IF S = {} THEN 0 ELSE CHOOSE x \in S : \A y \in S : y <= x

-----------------------------------------------------------------------------
(* A replica *)

Bound(p) == IF have[p] # 0 THEN Abs(have[p]) ELSE floor[p]

(* The highest bound of any key, as far as it shows: recovery's floor.        *)
BoundMax(p) == Max(Bound(p), floor[p])

(* A floor that lies below what is known of the key has no effect before that *)
(* is forgotten, and then it is raised: one state for all of them.            *)
Hold(p, known, least) ==
  /\ have' = [have EXCEPT ![p] = known]
  /\ floor' = [floor EXCEPT ![p] =
       IF known # 0 /\ least <= Abs(known) /\ Follows("2") /\ Follows("3")
       THEN 0 ELSE least]

IsUp(p) == role[p] = "up"
(* It has, or is going to have, a successor: module Move. *)
Replaced(p) == \E q \in Process : Place[q] = Place[p] /\ q \notin First
(* Rules 7 and 8. *)
Answers(p) == IsUp(p) \/ (role[p] = "recovering" /\ ~Follows("8"))
Votes(p) ==
  \/ role[p] \in {"up", "frozen", "dead"}
  \/ role[p] = "recovering" /\ ~Follows("7")

(* Rule 8: what a recovering replica keeps of SETs and ERASEs, once it has    *)
(* its floor.                                                                 *)
Keeps(p) ==
  /\ role[p] = "recovering"
  /\ rec.floors = rec.peers

-----------------------------------------------------------------------------
(* What clients know. What can no longer matter is forgotten: an answer of an *)
(* epoch that nobody is in any more, and of what was acknowledged or seen all *)
(* but the highest, the CASes, and what lies between a CAS and what it        *)
(* expects.                                                                   *)

Matters(w, S) ==
  \/ IsOnce(w) \/ kind[Top(Mutation)] = Fill
  \/ w = Top(S)
  \/ \E m \in Mutation : IsCas(m) /\ kind[m] > 0 /\ kind[m] < w /\ w < m
Worth(S) == {w \in S : Matters(w, S)}

IsDecided(m, done) == m \in done \/ (IsSet(m) /\ ~Matters(m, done \cup {m}))

Pairs(m, p) ==
  \E a \in acks[m] : Place[a[1]] # Place[p] /\ (a[2] = epoch[p] \/ ~Follows("4"))

Acknowledge(m, p) ==
  IF m \in acked \cup failed THEN UNCHANGED <<acks, acked>>
  ELSE IF Pairs(m, p)
  THEN LET done == Worth(acked \cup {m}) IN
       /\ acked' = done
       /\ acks' = [n \in Mutation |-> IF n = m \/ IsDecided(n, done) THEN {} ELSE acks[n]]
  ELSE /\ acks' = IF IsDecided(m, acked) THEN acks
                  ELSE [acks EXCEPT ![m] = @ \cup {<<p, epoch[p]>>}]
       /\ UNCHANGED acked

Refuse(m, p) ==
  LET all == IF \E a \in acks[m] : a[1] = p THEN refused[m] ELSE refused[m] \cup {Place[p]}
      enough == IF Follows("15") THEN 2 ELSE 1
  IN  IF m \in acked \cup failed THEN UNCHANGED <<acks, refused, failed>>
      ELSE IF Cardinality(all) >= enough
      THEN /\ failed' = failed \cup {m}
           /\ refused' = [refused EXCEPT ![m] = {}]
           /\ acks' = [acks EXCEPT ![m] = {}]
      ELSE /\ refused' = [refused EXCEPT ![m] = all]
           /\ UNCHANGED <<acks, failed>>

(* A process goes to an epoch, and what that makes worthless is forgotten.    *)
GoTo(p, e) ==
  LET now == [epoch EXCEPT ![p] = e]
      lives(q, of) == \E r \in Process : Place[r] # Place[q] /\ now[r] <= of
  IN  /\ epoch' = now
      /\ acks' = IF Follows("4")
                 THEN [m \in Mutation |-> {a \in acks[m] : lives(a[1], a[2])}]
                 ELSE acks
      /\ vote' = IF vote.by # Nobody /\ Follows("5") /\ ~lives(vote.by, vote.epoch)
                 THEN [vote EXCEPT !.by = Nobody, !.version = 0, !.epoch = 0, !.acked = 0, !.hit = 0]
                 ELSE vote

-----------------------------------------------------------------------------
(* Mutations *)

Known(m) == IF kind[m] = Erase THEN -m ELSE m

(* Rule 1. *)
Deliver(m, p) ==
  /\ IsSet(m)
  /\ m >= Bound(p) \/ ~Follows("1")
  /\ \/ /\ Answers(p)
        /\ Hold(p, Known(m), floor[p])
        /\ Acknowledge(m, p)
     \/ /\ Keeps(p) /\ ~Answers(p)
        /\ m >= floor[p]
        /\ Hold(p, Known(m), floor[p])
        /\ UNCHANGED <<acks, acked>>
  /\ UNCHANGED <<kind, sent, refused, failed, epoch, role, rec, crashes, gets>>

(* A CAS, rules 13 and 14, or a SET that is delivered once. *)
Applies(m, p) ==
  IF kind[m] \in {Once, Fill} THEN m >= Bound(p)
  ELSE \/ have[p] = m
       \/ kind[m] = Add /\ have[p] <= 0 /\ m >= Bound(p)
       \/ kind[m] > 0 /\ have[p] = kind[m]
       \/ ~Follows("13") /\ m >= Bound(p)

Receive(m, p) ==
  /\ IsOnce(m)
  /\ Place[p] \notin sent[m]
  /\ sent' = IF Follows("14") THEN [sent EXCEPT ![m] = @ \cup {Place[p]}] ELSE sent
  /\ \/ /\ Answers(p)
        /\ IF Applies(m, p)
           THEN /\ Hold(p, m, floor[p])
                /\ \/ Acknowledge(m, p)
                   \* Elsewhere a lost answer only lets clients know less.
                   \/ ~Follows("14") /\ UNCHANGED <<acks, acked>>
                /\ UNCHANGED <<refused, failed>>
           ELSE /\ IF IsCas(m) THEN Refuse(m, p) ELSE UNCHANGED <<acks, refused, failed>>
                /\ UNCHANGED <<stores, acked>>
     \/ /\ kind[m] = Once /\ Keeps(p) /\ ~Answers(p)
        /\ m >= Max(Bound(p), floor[p])
        /\ Hold(p, m, floor[p])
        /\ UNCHANGED <<acks, refused, acked, failed>>
  /\ UNCHANGED <<kind, epoch, role, rec, crashes, gets>>

(* A replica does not take it, for whatever reason, or certainly never        *)
(* receives it.                                                               *)
Reject(m, p) ==
  /\ IsOnce(m)
  /\ Place[p] \notin sent[m]
  /\ sent' = [sent EXCEPT ![m] = @ \cup {Place[p]}]
  /\ Refuse(m, p)
  /\ UNCHANGED <<kind, stores, epoch, role, acked, rec, crashes, gets>>

(* Rule 11: what two replicas agreed on goes to any other at its own version. *)
(* Of what may be repeated anyway, nothing new comes of it.                   *)
IsLoneNewest(m) ==
  LET living == {p \in Process : IsUp(p)} IN
  /\ Cardinality({p \in living : have[p] = m}) = 1
  /\ \A p \in living : Bound(p) <= m
  /\ \A p, q \in living : p # q /\ have[p] > 0 => have[p] # have[q]
Repair(m, p) ==
  /\ kind[m] # Erase
  /\ \/ IsOnce(m) /\ m \in hits \cup acked
     \/ ~Follows("11") /\ IsLoneNewest(m)
  /\ IsUp(p) \/ (Keeps(p) /\ m >= floor[p])
  /\ m >= Bound(p)
  /\ Hold(p, m, floor[p])
  /\ UNCHANGED <<clients, epoch, role, rec, crashes, gets>>

(* An ERASE at the entry's own version: of what has failed, by its client, or *)
(* of any entry, by who heals a key on which the living disagree.             *)
Withdraw(p) ==
  /\ have[p] > 0
  /\ have[p] \in failed \/ Heals
  /\ IsUp(p) \/ (Keeps(p) /\ have[p] >= floor[p])
  /\ Hold(p, -have[p], floor[p])
  /\ UNCHANGED <<clients, epoch, role, rec, crashes, gets>>

-----------------------------------------------------------------------------
(* Memory *)

HasMemory(p) == IsUp(p) \/ Keeps(p) \/ role[p] = "frozen"

(* Rule 3 of values, rule 2 of tombstones. *)
Drop(p) ==
  /\ Evicts
  /\ have[p] # 0
  /\ HasMemory(p)
  /\ LET raises == IF have[p] > 0 THEN Follows("3") ELSE Follows("2") IN
     Hold(p, 0, IF raises THEN Max(floor[p], Abs(have[p])) ELSE floor[p])
  /\ UNCHANGED <<clients, epoch, role, rec, crashes, gets>>

OthersRaise(p) ==
  /\ OtherKeys
  /\ IsUp(p)
  /\ BoundMax(p) <= Top(Mutation)
  /\ Hold(p, have[p], BoundMax(p) + 1)
  /\ UNCHANGED <<clients, epoch, role, rec, crashes, gets>>

-----------------------------------------------------------------------------
(* A GET: two votes, at two moments. A third that differs decides nothing,    *)
(* and a miss is always allowed. One at a time is enough: GETs change nothing *)
(* but what is known to have been seen.                                       *)

NoVote == [by |-> Nobody, version |-> 0, epoch |-> 0, acked |-> 0, hit |-> 0]

FirstVote(p) ==
  /\ vote.by = Nobody
  /\ Votes(p) /\ have[p] > 0
  /\ vote' = [by |-> p, version |-> have[p], epoch |-> epoch[p], acked |-> Top(acked),
              hit |-> IF Top(hits) > Top(acked) THEN Top(hits) ELSE 0]
  /\ UNCHANGED <<clients, stores, epoch, role, rec, crashes, hits, wrong>>

(* Rule 5. *)
SecondVote(p) ==
  /\ vote.by # Nobody
  /\ Votes(p) /\ have[p] = vote.version
  /\ Place[p] # Place[vote.by]
  /\ epoch[p] = vote.epoch \/ ~Follows("5")
  /\ hits' = Worth(hits \cup {have[p]})
  /\ wrong' = IF Value(have[p]) < vote.acked THEN "stale"
              ELSE IF Value(have[p]) < vote.hit THEN "back" ELSE wrong
  /\ vote' = NoVote
  /\ UNCHANGED <<clients, stores, epoch, role, rec, crashes>>

-----------------------------------------------------------------------------
(* Crash, and recovery by rules 6 to 10: the epochs of both peers, one floor, *)
(* the values that both hold, the vote. Repair by rule 11 follows at any time.*)
(* `got` is what was copied from a place: -1 nothing yet.                     *)

NoRecovery == [of |-> Nobody, peers |-> {}, raised |-> {}, floors |-> {}, got |-> [x \in {} |-> 0],
               tombs |-> [x \in {} |-> 0], done |-> FALSE]

(* A process loses everything and begins to recover. *)
Lose(p) ==
  LET peers == {Place[q] : q \in First} \ {Place[p]} IN
  /\ crashes > 0
  /\ rec.of \in {Nobody, p}
  /\ crashes' = crashes - 1
  /\ have' = [have EXCEPT ![p] = 0]
  /\ floor' = [floor EXCEPT ![p] = 0]
  /\ role' = [role EXCEPT ![p] = "recovering"]
  /\ rec' = [of |-> p, peers |-> peers, raised |-> {}, floors |-> {},
             got |-> [x \in peers |-> -1], tombs |-> [x \in peers |-> -1], done |-> FALSE]
  /\ GoTo(p, Top({epoch[q] : q \in Process}) + 1)
  /\ UNCHANGED <<kind, sent, refused, acked, failed, hits, wrong>>

Crash(p) ==
  /\ role[p] \in {"up", "recovering"}
  /\ Lose(p)

(* Of its own configuration, where replicas move. *)
IsPeer(q) ==
  /\ rec.of # Nobody
  /\ Place[q] \in rec.peers
  /\ ~(rec.of \in First /\ Replaced(rec.of) /\ q \notin First)
  /\ ~(rec.of \notin First /\ Replaced(q) /\ q \in First)
IsSource(q) == IsPeer(q) /\ role[q] \in {"up", "frozen"}

(* Rule 9. Another key of the shard may have a higher bound. *)
LearnFloor(q) ==
  LET p == rec.of
      found == CASE Without = "9" -> 0
                 [] Without = "9, bounds one by one" -> floor[q]
                 [] OTHER -> BoundMax(q)
  IN  \E other \in IF OtherKeys THEN {0, Top(Mutation), Top(Mutation) + 1} ELSE {0} :
        Hold(p, have[p], Max(floor[p], Max(found, other)))

(* Rule 6. *)
Raise(q) ==
  /\ IsPeer(q)
  /\ IsUp(q) \/ (role[q] = "frozen" /\ FrozenRise)
  /\ Place[q] \notin rec.raised
  /\ Follows("6") \/ rec.done
  /\ GoTo(q, epoch[rec.of])
  /\ IF CoarseRecovery /\ Follows("6")
     THEN /\ rec' = [rec EXCEPT !.raised = @ \cup {Place[q]}, !.floors = @ \cup {Place[q]}]
          /\ LearnFloor(q)
     ELSE /\ rec' = [rec EXCEPT !.raised = @ \cup {Place[q]}]
          /\ UNCHANGED stores
  /\ UNCHANGED <<kind, sent, refused, acked, failed, role, crashes, hits, wrong>>

TakeFloor(q) ==
  /\ IsSource(q)
  /\ Place[q] \in rec.raised \/ ~Follows("6")
  /\ Place[q] \notin rec.floors
  /\ rec' = [rec EXCEPT !.floors = @ \cup {Place[q]}]
  /\ LearnFloor(q)
  /\ UNCHANGED <<clients, epoch, role, crashes, gets>>

(* Rule 10: installed is what both hold, unless something newer was kept.     *)
CopyValue(q) ==
  /\ IsSource(q)
  /\ rec.floors = rec.peers
  /\ rec.got[Place[q]] = -1
  /\ LET p == rec.of
         got == [rec.got EXCEPT ![Place[q]] = Max(have[q], 0)]
         values == {got[x] : x \in rec.peers}
         all == -1 \notin values
         value == IF ~all THEN 0
                  ELSE IF Cardinality(values) = 1 \/ ~Follows("10") THEN Top(values)
                  ELSE 0
     IN /\ rec' = [rec EXCEPT !.got = IF all THEN [x \in rec.peers |-> 0] ELSE got, !.done = all]
        /\ IF value > 0 /\ value >= Abs(have[p])
           THEN Hold(p, value, floor[p])
           ELSE IF all /\ Without = "9, bounds one by one"
           THEN Hold(p, have[p], Max(floor[p], Top(values)))
           ELSE UNCHANGED stores
  /\ UNCHANGED <<clients, epoch, role, crashes, gets>>

(* Only of the mutant that copies bounds one by one, as a walk over values    *)
(* and one over tombstones.                                                   *)
CopyTombstone(q) ==
  /\ Without = "9, bounds one by one"
  /\ IsSource(q)
  /\ rec.floors = rec.peers
  /\ rec.tombs[Place[q]] = -1
  /\ rec' = [rec EXCEPT !.tombs[Place[q]] = 0]
  /\ Hold(rec.of, have[rec.of], Max(floor[rec.of], Max(-have[q], 0)))
  /\ UNCHANGED <<clients, epoch, role, crashes, gets>>

(* Rule 7. *)
Recovered ==
  /\ rec.of # Nobody
  /\ rec.done
  /\ rec.raised = rec.peers
  /\ Without = "9, bounds one by one" => \A x \in rec.peers : rec.tombs[x] = 0
  /\ role' = [role EXCEPT ![rec.of] = "up"]
  /\ rec' = NoRecovery
  /\ UNCHANGED <<clients, stores, epoch, crashes, gets>>

-----------------------------------------------------------------------------

CellInit ==
  /\ kind \in Mixes
  /\ have = [p \in Process |-> IF kind[1] = Stored /\ p \in First THEN 1 ELSE 0]
  /\ floor = [p \in Process |-> 0]
  /\ epoch = [p \in Process |-> 0]
  /\ role = [p \in Process |-> IF p \in First THEN "up" ELSE "new"]
  /\ acks = [m \in Mutation |-> {}]
  /\ sent = [m \in Mutation |-> {}]
  /\ refused = [m \in Mutation |-> {}]
  /\ acked = IF kind[1] = Stored THEN {1} ELSE {}
  /\ failed = {} /\ hits = {}
  /\ vote = NoVote
  /\ rec = NoRecovery
  /\ crashes = Crashes
  /\ wrong = ""

Mutate == \E p \in Process, m \in Mutation :
  Deliver(m, p) \/ Receive(m, p) \/ Reject(m, p) \/ Repair(m, p)
Manage == \E p \in Process : Withdraw(p) \/ Drop(p) \/ OthersRaise(p)
Get == \E p \in Process : FirstVote(p) \/ SecondVote(p)
Recover == Recovered \/ \E q \in Process :
  Raise(q) \/ TakeFloor(q) \/ CopyValue(q) \/ CopyTombstone(q)

-----------------------------------------------------------------------------
(* The promise *)

(* No hit is older than what was acknowledged before its GET began. *)
Fresh == wrong # "stale"
(* No hit is older than a hit that ended before its GET began. *)
Monotone == wrong # "back"
(* A CAS that was reported as failed is never seen. *)
FailedUnseen == \A m \in failed : IsCas(m) => m \notin hits
(* A mutation that was refused is never seen. *)
RefusedUnseen == \A m \in failed : ~IsCas(m) => m \notin hits
(* Of a CAS that was seen, or reported as stored: nothing was acknowledged or *)
(* seen between the version that it expected and its own.                     *)
Exact == \A m \in hits \cup acked : IsCas(m) /\ kind[m] > 0 =>
           \A w \in hits \cup acked : ~(kind[m] < w /\ w < m)

=============================================================================
