"""What every kind of finding means, why it is a fault, how engines came to it, and what mends it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Explanation:
    """One kind, for people.

    `why` and `fix` are also the WHY and ADD of a finding that brings no words of its own. `seen` is a mechanism as the
    public reports in `references` describe it. `look` is where to look next, or which option shows more.
    """

    title: str
    rule: str
    why: str
    seen: str
    references: tuple[str, ...]
    fix: str
    look: str


EXPLANATIONS: dict[str, Explanation] = {
    "reserved_slot": Explanation(
        "a reserved slot is handed out",
        "Reserved slots are never handed out.",
        "Padding lanes of captured graphs read and write reserved slots at any time, so whoever was handed one has "
        "its content overwritten.",
        "Slot 0 of a state pool was in the free list although graph capture wrote to it; the request that got it "
        "started from garbage.",
        ("sgl-project/sglang#17404", "sgl-project/sglang#26292"),
        "leave the reserved slots out of the free list, also when it is rebuilt by a reset.",
        "The event that declared the pool says which slots are reserved; compare it with the allocator's first slot.",
    ),
    "double_alloc": Explanation(
        "a slot is handed out while somebody holds it",
        "What is handed out exists and was free.",
        "Two owners now write to the same memory and each reads what the other wrote; the pool's totals can still "
        "balance.",
        "A node was split at a wrong position and kept slots that had been freed, so the free set and what the tree "
        "held overlapped; a slot that stands twice in a free list has the same end.",
        ("sgl-project/sglang#34823", "ModelEngine-Group/unified-cache-management#1053"),
        "take the slot out of the free list in the step that hands it out, and give it back in one place only.",
        "If a free is missing before it in the slot's history, the engine frees somewhere that no hook sees.",
    ),
    "invalid_free": Explanation(
        "a free of what was never allocated",
        "What is freed exists, is not reserved, and was allocated at some time since the pool began.",
        "The free list now holds a slot that is not the pool's to give; the next allocation hands out a padding slot "
        "or one beyond the pool's end.",
        "The block lists of sliding-window requests contain null placeholders; a release that frees the whole list "
        "freed the placeholders too.",
        ("ModelEngine-Group/unified-cache-management#1053", "sgl-project/sglang#35401"),
        "free the range that was allocated, not the cells up to a length, and skip placeholders.",
        "The stack shows who computed the range; --level slots compares it with what the row really maps.",
    ),
    "double_free": Explanation(
        "a slot is freed twice",
        "There is one free for each allocation.",
        "The slot stands in the free list twice and will be handed to two owners; or it already belongs to the next "
        "owner, who has just lost it.",
        "Two paths each believed that the cleanup was theirs: a transfer helper and its loop both gave back an "
        "unfinished tail; preemption released a request that had finished.",
        ("sgl-project/sglang#13483", "sgl-project/sglang#18694", "vllm-project/vllm#42571"),
        "give the release one owner: clear the handle in the step that frees, and let the other path find it empty.",
        "Both stacks are in the report. Frees that a group collects may name a slot twice only where the engine drops "
        "duplicates.",
    ),
    "page_double_free": Explanation(
        "a page is freed twice through different slots",
        "A page is given back once, whichever of its slots are named.",
        "A free that touches a page gives all of it back, so two pieces of one release that meet inside a page free it "
        "twice although no slot is named twice.",
        "At finish the tail was freed in two pieces that met in the middle of a page.",
        ("sgl-project/sglang#38941", "sgl-project/sglang#39387"),
        "round where the pieces meet to a page boundary, or free the whole range in one call.",
        "Compare the ends of both ranges with the page size; the slot map shows the page.",
    ),
    "free_not_owner": Explanation(
        "slots are given away by somebody who does not hold them",
        "Who gives slots away (free, insert, give, evict) holds or shares them.",
        "The real holder goes on using slots that are free for everybody else, and will read another request's cache.",
        "An entry of a secondary map outlived its slot; the slot was handed to another request and then freed through "
        "the old entry.",
        ("sgl-project/sglang#27586", "sgl-project/sglang#36135"),
        "clear every map entry and handle when its slot is freed, and resolve the slot when the free is called, not "
        "when it is carried out.",
        "The history says since when the holder has the slot; the handle that was used is older than that.",
    ),
    "free_in_flight": Explanation(
        "slots are given back while a transfer uses them",
        "Nothing is given back while a transfer uses it.",
        "A copy that is still on its way will write into, or read from, slots that the next owner already fills.",
        "A decode instance reserved pages for a remote write; the request was aborted and the pages were freed and "
        "handed on before the write landed.",
        ("sgl-project/sglang#24527", "vllm-project/vllm#32255", "sgl-project/sglang#28468"),
        "hold the slots until the transfer's end is known, and let an abort only mark them to be freed then.",
        "A transfer that never ends needs a bounded fallback, or this turns into a leak.",
    ),
    "evict_locked": Explanation(
        "a locked or shared node is evicted",
        "What a lock protects or an owner shares is not evicted.",
        "A request that counts on the prefix being there loses it while it runs, and reads whatever is written there "
        "next.",
        "A load back collected the host slots of a prefix, and memory pressure evicted them before the load had used "
        "them; in another case one half of a split node was left without the lock.",
        ("sgl-project/sglang#26728", "sgl-project/sglang#38480"),
        "lock before the first use and until the last, and give both halves of a split the locks of the whole.",
        "The earlier access is the lock or the share; a lock covers all ancestors.",
    ),
    "stale_capture": Explanation(
        "a slot leaves under a batch that captured it",
        "A slot that an outstanding batch captured is not given back, nor its cell given another slot, before its "
        "request finished, was aborted or was retracted.",
        "The batch took a snapshot of the row and will read the old slots; what is in them depends on who gets them.",
        "A decode step had captured the row; then the result of the prefill before it was inserted, duplicates were "
        "swapped for the tree's slots and freed.",
        ("sgl-project/sglang#39765", "sgl-project/sglang#38140"),
        "publish to the cache before the next batch captures the row, or keep the old slots until that batch is done.",
        "The capture's batch is outstanding until it is done or the host is ordered after its launch.",
    ),
    "alias": Explanation(
        "one slot stands in two places",
        "A slot stands under one node; and, unless a node holds it, in one owner's live rows only.",
        "Two keys or two requests share memory without knowing it: the first to evict or to write breaks the other.",
        "A block was inserted before it was final, and the next step inserted the same pages under another key.",
        ("sgl-project/sglang#35270", "sgl-project/sglang#35470"),
        "insert a page once, when its key is final, and after an insert use the node's slots instead of your own.",
        "Pool totals that exceed the pool's size are the usual aftermath.",
    ),
    "orphan": Explanation(
        "the only trace of a slot is overwritten",
        "A row's cell is not overwritten while its old slot is held only through that cell.",
        "Nobody can find the old slot any more, so nobody will free it.",
        "A session resumed below the length that was allocated before, and new slots were written over the row's tail.",
        ("sgl-project/sglang#22862", "sgl-project/sglang#26972"),
        "free the old slot or hand it to somebody before its cell is written, or go on behind the allocated length.",
        "At the request's end the same slots show up as a leak; it joins this finding.",
    ),
    "stale_row": Explanation(
        "a row is used that is no longer the owner's",
        "Who reuses a slot still holds it, and a captured cell was written in this tenancy of its row.",
        "The row still looks filled, but its cells are what its previous tenant left there.",
        "A request whose record had been released kept its row number; the next allocation took that for a row to be "
        "continued.",
        ("sgl-project/sglang#37167", "sgl-project/sglang#26941"),
        "clear the handle in the step that releases the row, and ask the record, not a length, whether it is held.",
        "The generations in the history show how many tenants came between.",
    ),
    "use_after_free": Explanation(
        "a slot is used that nobody holds",
        "What is read, written, captured or inserted is held by somebody; what is attached, by that node or one split "
        "from it.",
        "The slot is free: the next allocation hands it out, and then this use meets another owner's data.",
        "A prefix index kept the entry of a block that had been given back; in a store a lease ended while its reader "
        "was still at work.",
        ("GeeeekExplorer/nano-vllm#163", "kvcache-ai/Mooncake#850"),
        "hold the slot, or a lock on its node, until the last use is over, and drop index entries with their content.",
        "The earlier access is the free. --level full records every read and write, not only captures and inserts.",
    ),
    "race": Explanation(
        "two accesses that nothing orders",
        "Two accesses to a slot or row cell, at least one a write, are ordered.",
        "The two run on agents that do not wait for each other, so either may come first. Whether the result goes "
        "wrong depends on timing; the fault does not.",
        "A chunked request gave its row back between two chunks; the row was handed to another request and written on "
        "the schedule stream while the forward stream still read it.",
        ("sgl-project/sglang#17850", "sgl-project/sglang#26380", "vllm-project/vllm#46278"),
        "make the later agent wait for an event that is recorded after the earlier access, or keep the slot until "
        "that access is known to be over.",
        "A free and an alloc between the two order nothing: they are bookkeeping of the host.",
    ),
    "uninit_read": Explanation(
        "a slot is read before anything was written to it",
        "A slot is read only after this tenancy wrote it.",
        "What is read was left by the previous tenant, or is whatever the memory held at start.",
        "A recurrent state was used as it came from the pool; in another engine a prefix could be matched before its "
        "prefill had filled it.",
        ("sgl-project/sglang#17404", "huggingface/text-generation-inference#2489"),
        "clear or load the slot before its first read, and let only written slots be matched.",
        "Pools whose slots need no first write are declared with init=false. Reads are recorded at --level full.",
    ),
    "leak": Explanation(
        "an owner is over and still holds slots",
        "At its end an owner holds nothing; at idle neither do owners that never ended.",
        "Nobody is left who would give these slots back: the pool shrinks with every such request until nothing fits.",
        "A request ended on a path that gives back only part of what it holds: an abort in a mixed batch freed the "
        "token slot, not the row; an abort in a waiting queue freed nothing.",
        ("sgl-project/sglang#10871", "sgl-project/sglang#32992", "sgl-project/sglang#8587"),
        "release everything that the request's record lists on every path that ends it, by one common function.",
        "The stack is the path that ended it; the table says where what it holds was allocated. "
        "kvsan.check_memory() says the same of a living process.",
    ),
    "lock_leak": Explanation(
        "a lock is never taken back",
        "Who locked has unlocked.",
        "The node and all its ancestors can never be evicted again: the cache fills up with what nobody uses.",
        "A backup locked its node and queued the acknowledgement that would unlock it; only the prefill path emptied "
        "that queue, and a server that only decodes never came there.",
        ("sgl-project/sglang#20049", "sgl-project/sglang#35869"),
        "pair every lock with an unlock that each loop and each end of a request reaches.",
        "The earlier access is the lock that is left over, with its stack.",
    ),
    "lock_underflow": Explanation(
        "more unlocks than locks",
        "Unlocks do not outnumber locks.",
        "The count of a node or of an ancestor falls below what others rely on, so a prefix that is in use counts as "
        "evictable.",
        "A node that was never locked got an unlock, and the pages of its ancestors moved to the evictable total.",
        ("bytedance-iaas/sglang#748", "apache/tvm#16666"),
        "unlock the node that was locked, once, and keep it with the request so that a split or a second path cannot "
        "pick another.",
        "The earlier access is the last unlock that was right.",
    ),
    "count_mismatch": Explanation(
        "the engine's totals do not add up",
        "The engine's totals agree with each other and with the shadow.",
        "The engine decides by these numbers what it may admit and evict. Too little free is a leak, too much is a "
        "slot with two owners.",
        "A counter was kept beside the ownership that it counts, and one path changed only one of the two: a "
        "utilisation of 135 % in one report, a sum above the pool's size in another.",
        ("xLLM-AI/xllm#828", "sgl-project/sglang#34823"),
        "derive the counter from the owners, or change both in the same place.",
        "The sign tells which: a deficit has lost slots, an excess has counted some twice. kvsan.check_memory() says "
        "who holds the difference.",
    ),
    "record_contract": Explanation(
        "a request's record contradicts what it holds",
        "committed <= allocated <= the cells that the row maps, rounded up to pages; protected <= allocated; without a "
        "row nothing is allocated.",
        "Releases and the next allocation go by the record: what it does not cover is leaked, what it covers too much "
        "is freed from somebody else.",
        "Speculative decoding grew the record by tokens while the allocator gave whole pages; the release stopped "
        "short of the last one.",
        ("sgl-project/sglang#31616", "sgl-project/sglang#37167"),
        "change the record in the same step as the allocation, and round both in the same direction.",
        "The report names the lengths; compare them with the cells that the history shows as written.",
    ),
    "namespace_mixup": Explanation(
        "a prefix is matched in the wrong key domain",
        "A match stays in the key domain (adapter, user salt, image) that inserted the node.",
        "The tokens are equal but what was computed from them is not: the request continues on another adapter's or "
        "another user's cache.",
        "Two images have the same placeholder tokens, and a key made of tokens alone answered the second from the "
        "first; a key made of an adapter's name survived the adapter's replacement.",
        ("sgl-project/sglang-omni#258", "vllm-project/vllm#30931"),
        "make everything that changes the computed values part of the key.",
        "Both domains are in the report; one that is missing is a domain of its own.",
    ),
    "rank_divergence": Explanation(
        "the ranks of a group do not do the same",
        "The n-th ownership event of a pool is the same on every rank of a group.",
        "Ranks that hold different slots for the same tokens compute on different data, or wait for each other for "
        "ever.",
        "Pools of different size on two pipeline stages evicted different prefixes, until the hit lengths for one "
        "request differed and the engine went down.",
        ("sgl-project/sglang#10214", "LMCache/LMCache#1379"),
        "decide once and send the decision to every rank, and give all ranks the smallest pool's size.",
        "Check the traces of all ranks in one command; the index is that of the first difference.",
    ),
}
